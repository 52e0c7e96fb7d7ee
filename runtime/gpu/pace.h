// The time of an emulated network: when each step may begin and when it ends there (pace.py writes the sheet).
//
// Every block keeps the time at which its step ends on the network, in ps since all blocks began, and waits until the
// device's clock reaches that time. Other blocks get that time too: a message carries its arrival, a slot the time when
// it was emptied, a dependency the time when it was met. So a device that is late now and then delays no other block.
// Links and limits that are never full are not checked. For the others a block asks under one lock. The block that has
// waited longest goes first, and none goes until all that ask at the same time have had `SETTLE` ps to ask.
#pragma once

enum Sheet {
    BLOCKS, SETTLE,                                       // Number of blocks; ps.
    ARRIVED, ORIGIN, GATE,                                // Blocks that have begun; ns of the clock; the lock.
    ENDED, DUE,                                           // End of the last block in ps, on the device, on the network.
    PACES, TIMES, LINKS, USED, PLACES, USERS, HOLDS,      // Where the parts below begin.
    SHEET,
};
enum Pace { FROM, EMPTIED, NEED, HOLD, TIE, PACE };       // Of a step; −1: none.
enum Time { ARRIVES, TAKEN, OVER, TIME };                 // Of a step, in ps.
enum Link { ALPHA, RATE, USED_FIRST, USED_COUNT, LINK };  // Of a connection; the places that it may find full.
enum Place { CAPACITY, USERS_FIRST, USERS_COUNT, PLACE };
enum Hold { UNTIL, ASKED, ASKED_TIE, AT, WAKES, HOLD_ };  // Of a connection; ASKED −1: it does not wait.
constexpr long long FRESH = -1;                           // Value of AT before the first look.
constexpr long long NEVER = 1ll << 62;

struct Clock {
    const Job &job;
    long long now = 0;  // Begin of the current step on the network in ps, and then its end.

    DEVICE long long *part(Sheet which) const { return job.pace + job.pace[which]; }
    DEVICE long long *time(int step) const { return part(TIMES) + step * (long long)TIME; }
    DEVICE const long long *pace(int step) const { return part(PACES) + step * (long long)PACE; }
    DEVICE long long real() const { return 1000 * (now_ns() - load_relaxed(job.pace + ORIGIN)); }

    DEVICE void begin() const {
        if (add_one(job.pace + ARRIVED) + 1 == job.pace[BLOCKS]) store_release(job.pace + ORIGIN, now_ns());
    }
    DEVICE bool begun() const { return load_acquire(job.pace + ORIGIN) != 0; }

    // Waits for a time. Returns false if a block gave up.
    DEVICE bool pass(long long until) const {
        for (;;) {
            const long long left = until - real();
            if (left <= 0) return true;
            if (load_relaxed(job.report)) return false;
            rest(left / 1000 + 1);
        }
    }

    DEVICE bool end() const {
        if (!pass(now)) return false;
        raise_to(job.pace + DUE, now);
        raise_to(job.pace + ENDED, real());
        return true;
    }

    DEVICE void later(long long other) {
        if (other > now) now = other;
    }

    // Sends the step's message: it holds its connection's places from now on, or as soon as there is room.
    DEVICE bool send(int connection, int step) {
        const long long *row = pace(step);
        const long long *w = part(LINKS) + connection * (long long)LINK;
        if (w[USED_COUNT] && !ask(connection, row)) return false;
        now += row[HOLD];
        time(step)[ARRIVES] = now + w[ALPHA];
        return true;
    }

    DEVICE bool ask(int connection, const long long *row) {
        long long *own_hold = part(HOLDS) + connection * (long long)HOLD_;
        unsigned *gate = (unsigned *)(job.pace + GATE);
        lock(gate);
        own_hold[ASKED] = now, own_hold[ASKED_TIE] = row[TIE], own_hold[AT] = FRESH;
        unlock(gate);
        if (!pass(now + job.pace[SETTLE])) return false;
        for (;;) {
            lock(gate);
            const long long real_now = real();
            long long start = free_from(connection, own_hold);
            const bool granted = start <= real_now && first(connection, own_hold, real_now);
            if (granted) {
                now = start;
                own_hold[UNTIL] = start + row[HOLD], own_hold[ASKED] = -1;
            }
            unlock(gate);
            if (granted) return true;
            if (start > real_now ? !pass(start) : load_relaxed(job.report) != 0) return false;
            relax();
        }
    }

    // Returns when there is room for the connection, as far as is known, and notes the place that it waits for.
    DEVICE long long free_from(int connection, long long *own_hold) const {
        const long long *w = part(LINKS) + connection * (long long)LINK;
        long long start = own_hold[ASKED];
        for (long long k = 0; k < w[USED_COUNT]; k++) {
            const long long number = part(USED)[w[USED_FIRST] + k];
            const long long *place = part(PLACES) + number * PLACE;
            long long used = w[RATE], next = NEVER;
            for (long long u = 0; u < place[USERS_COUNT]; u++) {
                const long long other = part(USERS)[place[USERS_FIRST] + u];
                const long long until = part(HOLDS)[other * HOLD_ + UNTIL];
                if (other == connection || until <= start) continue;
                used += part(LINKS)[other * LINK + RATE];
                if (until < next) next = until;
            }
            if (used <= place[CAPACITY]) continue;
            own_hold[AT] = number, own_hold[WAKES] = next;
            start = next;
            k = -1;  // The search begins again at the first place.
        }
        return start;
    }

    // Returns true if no connection that has waited longer is about to take the same place.
    DEVICE bool first(int connection, const long long *own_hold, long long real_now) const {
        const long long *w = part(LINKS) + connection * (long long)LINK;
        for (long long k = 0; k < w[USED_COUNT]; k++) {
            const long long number = part(USED)[w[USED_FIRST] + k];
            const long long *place = part(PLACES) + number * PLACE;
            for (long long u = 0; u < place[USERS_COUNT]; u++) {
                const long long other = part(USERS)[place[USERS_FIRST] + u];
                const long long *other_hold = part(HOLDS) + other * HOLD_;
                if (other == connection || other_hold[ASKED] < 0) continue;
                const bool tied = other_hold[ASKED] == own_hold[ASKED];
                const bool older =
                    tied ? other_hold[ASKED_TIE] < own_hold[ASKED_TIE] : other_hold[ASKED] < own_hold[ASKED];
                const bool wakes = other_hold[AT] == number && other_hold[WAKES] <= real_now;
                if (older && (other_hold[AT] == FRESH || wakes)) return false;
            }
        }
        return true;
    }
};
