"""The command line: the one room that sees all others. Bad input is one line on stderr and exit code 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from synth.cli import bench, compile, convert, interrupt, prove, report, search, simulate, topologies, tune
from topologies.errors import InputError


class _Commands(click.Group):
    """Takes torch's spellings of collectives too, and suggests near names."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        from synth.model.collective import parse_name

        try:
            return super().get_command(ctx, parse_name(cmd_name))
        except InputError:
            return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        import difflib

        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name.lower(), self.list_commands(ctx), n=2, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else "."
            raise InputError(f"command {name[:60]!r} is not known{hint} See synth --help")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - in the order of the file
        return list(self.commands)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="synth-collectives", prog_name="synth")
def cli() -> None:
    """Find, prove and write algorithms for collectives on a given network.

    \b
    synth allreduce --topo dgx-a100 --group 0,2,4,6
    synth topo list
    synth verify out/msccl/FILE.xml
    """


for _command in (
    *search.commands(),
    topologies.topo,
    prove.prove,
    simulate.simulate,
    compile.compile_,
    compile.lower_,
    compile.optimize,
    bench.bench,
    tune.tune,
    tune.calibrate,
    report.report,
    convert.convert,
):
    cli.add_command(_command)


@cli.command("verify")
@click.argument("file")
@click.option("--depth", type=int, metavar="N", help="FIFO slots. Default: the protocol's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def _verify(file: str, depth: int | None, as_json: bool) -> None:
    """Replay an MSCCL XML or an execution plan (JSON), ours or another's: right, wrong, deadlock or not readable.

    Exit code 0 right, 1 wrong or deadlock, 2 not readable.

    \b
    synth verify out/msccl/FILE.xml
    """
    from emit.library.index import goal_beside
    from emit.msccl.write import verify_file

    if depth is not None and depth < 1:
        raise InputError(f"--depth {depth}: must be 1 or more")
    if Path(file).suffix.lower() == ".json":
        from emit.mscclpp.check import verify_plan

        if depth is not None:
            raise InputError("--depth: an execution plan has no FIFO; leave it out")
        verdict = verify_plan(file, goal_beside(Path(file)))
    else:
        verdict = verify_file(file, goal_beside(Path(file)), depth)
    if as_json:
        findings = [
            {"kind": f.kind, "message": f.message, "rank": f.rank, "tb": f.tb, "step": f.step}
            for f in verdict.findings
        ]
        click.echo(
            json.dumps(
                {"file": file, "status": verdict.status, "lines": list(verdict.lines), "findings": findings},
                ensure_ascii=False,
                indent=1,
            )
        )
    elif verdict.status == "not readable":
        raise InputError(f"not readable: {'; '.join(verdict.lines)}")
    else:
        click.echo(f"{file}: {verdict.status}")
        for line in verdict.lines:
            click.echo(f"  {line}")
    raise SystemExit(verdict.exit_code)


def main() -> None:
    """Entry point of the command `synth`."""
    interrupt.install()
    try:
        cli.main(standalone_mode=False)
    except InputError as error:
        click.echo(f"synth: {error}", err=True)
        raise SystemExit(2) from None
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        raise SystemExit(0) from None
    except click.ClickException as error:
        click.echo(f"synth: {error.format_message()}".replace("\n", " "), err=True)
        raise SystemExit(2) from None
    except MemoryError as error:
        click.echo(f"synth: not enough memory: {error or 'would be a smaller size'}", err=True)
        raise SystemExit(2) from None
    except (KeyboardInterrupt, click.Abort):
        click.echo("synth: interrupted before there was an answer", err=True)
        raise SystemExit(130) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
