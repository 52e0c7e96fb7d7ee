// A network's time, for launches that are paced: when each step may begin and ends there (pace.py makes the sheet).
//
// Every block keeps the time at which its step would be over on the network, in ps since all blocks began, and waits
// until the device's clock has come so far. What is passed on bears that time: a message when it arrives, a slot when
// it was emptied, a dependency when it was met. So a device that is late now and then makes nobody else late.
// Links and limits that are never full are not asked for. For the others a block asks under one lock; who has waited
// longest goes first, and nobody goes before all who ask at his time had `SETTLE` to say so.
#pragma once

enum Sheet {
    BLOCKS, SETTLE,                                       // how many blocks; ps
    ARRIVED, ORIGIN, GATE,                                // blocks that have begun; ns of the clock; the lock
    ENDED, DUE,                                           // ps: when the last block was over, on the device, on the network
    PACES, TIMES, LINKS, USED, PLACES, USERS, HOLDS,      // where the parts below begin
    SHEET,
};
enum Pace { FROM, EMPTIED, NEED, HOLD, TIE, PACE };       // of a step; −1: none
enum Time { ARRIVES, TAKEN, OVER, TIME };                 // of a step, ps
enum Link { ALPHA, RATE, USED_FIRST, USED_COUNT, LINK };  // of a connection; what it may find full
enum Place { CAPACITY, USERS_FIRST, USERS_COUNT, PLACE };
enum Hold { UNTIL, ASKED, ASKED_TIE, AT, WAKES, HOLD_ };  // of a connection; ASKED −1: it does not wait
constexpr long long FRESH = -1;                           // AT: has not looked yet
constexpr long long NEVER = 1ll << 62;

struct Clock {
    const Job &job;
    long long now = 0;  // ps: when the step at hand began on the network, and then when it ended

    DEVICE long long *part(Sheet which) const { return job.pace + job.pace[which]; }
    DEVICE long long *time(int step) const { return part(TIMES) + step * (long long)TIME; }
    DEVICE const long long *pace(int step) const { return part(PACES) + step * (long long)PACE; }
    DEVICE long long real() const { return 1000 * (now_ns() - load_relaxed(job.pace + ORIGIN)); }

    DEVICE void begin() const {
        if (add_one(job.pace + ARRIVED) + 1 == job.pace[BLOCKS]) store_release(job.pace + ORIGIN, now_ns());
    }
    DEVICE bool begun() const { return load_acquire(job.pace + ORIGIN) != 0; }

    // Wait for a time. False where somebody gave up.
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

    // The step sends: it holds what its connection needs for a while, from now on or as soon as there is room.
    DEVICE bool send(int connection, int step) {
        const long long *row = pace(step);
        const long long *w = part(LINKS) + connection * (long long)LINK;
        if (w[USED_COUNT] && !ask(connection, row)) return false;
        now += row[HOLD];
        time(step)[ARRIVES] = now + w[ALPHA];
        return true;
    }

    DEVICE bool ask(int connection, const long long *row) {
        long long *mine = part(HOLDS) + connection * (long long)HOLD_;
        unsigned *gate = (unsigned *)(job.pace + GATE);
        lock(gate);
        mine[ASKED] = now, mine[ASKED_TIE] = row[TIE], mine[AT] = FRESH;
        unlock(gate);
        if (!pass(now + job.pace[SETTLE])) return false;
        for (;;) {
            lock(gate);
            const long long today = real();
            long long start = free_from(connection, mine);
            const bool taken = start <= today && first(connection, mine, today);
            if (taken) {
                now = start;
                mine[UNTIL] = start + row[HOLD], mine[ASKED] = -1;
            }
            unlock(gate);
            if (taken) return true;
            if (start > today ? !pass(start) : load_relaxed(job.report) != 0) return false;
            relax();
        }
    }

    // When there is room for the connection, as far as is known; where that is later, what it waits for is noted.
    DEVICE long long free_from(int connection, long long *mine) const {
        const long long *w = part(LINKS) + connection * (long long)LINK;
        long long start = mine[ASKED];
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
            mine[AT] = number, mine[WAKES] = next;
            start = next;
            k = -1;  // once more from the first
        }
        return start;
    }

    // Whether nobody who has waited longer is about to take the same.
    DEVICE bool first(int connection, const long long *mine, long long today) const {
        const long long *w = part(LINKS) + connection * (long long)LINK;
        for (long long k = 0; k < w[USED_COUNT]; k++) {
            const long long number = part(USED)[w[USED_FIRST] + k];
            const long long *place = part(PLACES) + number * PLACE;
            for (long long u = 0; u < place[USERS_COUNT]; u++) {
                const long long other = part(USERS)[place[USERS_FIRST] + u];
                const long long *his = part(HOLDS) + other * HOLD_;
                if (other == connection || his[ASKED] < 0) continue;
                const bool older = his[ASKED] < mine[ASKED] ||
                                   (his[ASKED] == mine[ASKED] && his[ASKED_TIE] < mine[ASKED_TIE]);
                if (older && (his[AT] == FRESH || (his[AT] == number && his[WAKES] <= today))) return false;
            }
        }
        return true;
    }
};
