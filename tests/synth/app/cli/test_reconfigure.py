"""`synth reconfigure`: a row for each time of a change, as table and JSON; wrong input in one line."""

from __future__ import annotations

import json

from synth.app.present.changes import changes_table
from tests.synth.app.cli.calling import Call

WORDS = ["reconfigure", "alltoall", "--states", "strides:5,bw=50", "--budget", "4s", "--delta", "0,1000000"]


def test_the_command_prints_a_row_for_each_time_of_a_change(synth: Call) -> None:
    answer = synth(*WORDS, "--json")
    assert (answer.code, answer.err) == (0, "")
    document = json.loads(answer.out)
    changing, staying = document["rows"]
    assert (changing["delta_us"], sorted(changing["states"])) == (0.0, ["stride 1", "stride 2"])
    assert (staying["changes"], staying["time_us"]) == (0, staying["single_us"])
    assert changing["time_us"] < staying["time_us"]
    assert all(row["gap"] >= 1 - 1e-9 for row in document["rows"])
    for row in document["rows"]:
        phases = document["schedules"][row["schedule"]]
        assert row["time_us"] == sum(phase["time_us"] for phase in phases) + row["changes"] * row["delta_us"]
        for phase in phases:
            assert {chunk for chunk, *_ in phase["sends"]} <= set(range(len(phase["blocks"])))
            assert all(0 <= part < phase["parts"] for _, part, *_ in phase["sends"])
    lines = changes_table(document, 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[:3] for line in lines[2:4]] == [["0", "µs", "1"], ["1", "s", "0"]]


def test_the_direct_all_reduce_of_one_state_is_listed(synth: Call) -> None:
    words = ["reconfigure", "allreduce", "--states", "full:3", "--size", "1K", "--budget", "1s", "--json"]
    (phase,) = json.loads(synth(*words).out)["schedules"][0]
    assert {chunk for chunk, *_ in phase["sends"]} <= set(range(len(phase["blocks"])))


def test_blocks_of_several_sizes_are_refused(synth: Call) -> None:
    assert "equal blocks" in synth("reconfigure", "alltoallv", "--states", "ring:4").refusal
