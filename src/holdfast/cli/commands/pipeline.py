"""`holdfast pipeline`: Spark jobs over the store folders of brokers.

    holdfast pipeline audit /data/broker-a /data/broker-b --html audit.html

The jobs read folders, not brokers: folders of live brokers, copies, or folders of Java brokers. `--master` chooses
where they run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from holdfast.admin.tables import print_all, print_json
from holdfast.cli.arguments import (
    AccessKeyOption,
    AuthModeOption,
    NamesrvOption,
    ProfileOption,
    SecretFileOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TlsVerifyOption,
)
from holdfast.cli.credentials import credentials_of
from holdfast.cli.profiles import find_cluster
from holdfast.cli.progress import show_progress
from holdfast.cli.shared_options import cluster_flags, command_with
from holdfast.model.errors import ConfigError
from holdfast.runtime.process.extras import describe_missing
from holdfast.store.recovery.conversion_plan import ConvertedKind

if TYPE_CHECKING:
    from holdfast.pipeline.reports.report import JobReport
    from holdfast.pipeline.scan.tasks import Progress, Tasks

app = typer.Typer(no_args_is_help=True, help="Jobs over the stored log, on Spark.")

NO_SPARK: Final = "none"
BACKFILL: Final = "backfill"
"""The only job whose rows pass through Java."""
_COMMON: Final = "Spark and output"
_FAULTY: Final = 1

StoresArgument = Annotated[
    list[str],
    typer.Argument(metavar="[NAME=]FOLDER...", help="Store folders, optionally with their brokers' names."),
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def register(root: typer.Typer) -> None:
    """Add this noun to the tree of commands."""
    root.add_typer(app, name="pipeline")


class JobRun:
    """One run of a job: where its tasks run, and where its progress and result go."""

    def __init__(self, *, master: str | None, as_json: bool, page: Path | None) -> None:
        self._master = master
        self._as_json = as_json
        self._page = page
        self._bar = contextlib.ExitStack()

    @contextlib.contextmanager
    def tasks(self, name: str) -> Iterator[Tasks]:
        """Yield the runner of tasks for job *name*, and stop it afterwards.

        Raises:
            ConfigError: Spark is not installed, or Java is missing.
        """
        try:
            from holdfast.pipeline.scan.tasks import InProcess  # noqa: PLC0415 - needs numpy, an extra
        except ImportError as error:
            raise _missing_extra(error) from error
        with self._bar:
            if self._master == NO_SPARK:
                yield InProcess()
                return
            try:
                from holdfast.pipeline.scan.spark_tasks import LEAN, SparkTasks  # noqa: PLC0415 - so is Spark
                from holdfast.spark import session  # noqa: PLC0415
            except ImportError as error:
                raise _missing_extra(error) from error
            self.show("starting Spark", 1)
            config = None if name == BACKFILL else LEAN
            spark = session(f"holdfast pipeline {name}", master=self._master, config=config)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                yield SparkTasks(spark)
            finally:
                self._bar.close()
                spark.stop()

    def show(self, label: str, count: int) -> Progress:
        """Replace the progress bar by one for the step that begins now."""
        self._bar.close()
        return self._bar.enter_context(show_progress(label, count, quiet=self._as_json))

    def print_result(self, value: object, report: JobReport, folders: Sequence[str]) -> None:
        """Print the result of a job on *folders* as JSON or as tables, and write the HTML page."""
        if self._page is not None:
            try:
                from holdfast.pipeline.reports.report_page import PageOrigin, to_page  # noqa: PLC0415 - draws with matplotlib
            except ImportError as error:
                raise _missing_extra(error) from error
            origin = PageOrigin(made=datetime.now(UTC), version=version("holdfast"), folders=folders)
            self._page.write_text(to_page(report, origin), encoding="utf-8")
        if self._as_json:
            print_json(value)
        else:
            print_all(report.printed())
            if self._page is not None:
                sys.stderr.write(f"written to {self._page}\n")


def _missing_extra(error: ImportError) -> ConfigError:
    return ConfigError(describe_missing("holdfast pipeline", error, "spark"))


def _common_options(
    *,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where it runs: a Spark master, or 'none' to run in this process without Spark.",
            show_default="local[*]",
            rich_help_panel=_COMMON,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write the result to this HTML page.", rich_help_panel=_COMMON
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=_COMMON)] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a failure.", rich_help_panel=_COMMON)
    ] = False,
) -> JobRun:
    """Return the run for the common options. `main`, which catches failures, reads `--debug`."""
    del debug
    return JobRun(master=master, as_json=as_json, page=page)


def pipeline_command(name: str, **settings: Any) -> Callable[[_Function], _Function]:
    """Register a function as a job. Its first parameter is a `JobRun`, the others are the job's own options."""
    return command_with(_common_options, app, name, **settings)


@app.callback()
def _keep_verbs() -> None:
    """Make Typer keep every job as a verb."""


@pipeline_command("audit")
def audit(run: JobRun, *, stores: StoresArgument) -> None:
    """Check that every record has exactly one index entry and a valid checksum, and that mappings match the files.

    Exit status 0 if everything is right, 1 if not. It changes nothing. In folders of live brokers it checks only data
    that is final on disk.

    Example: holdfast pipeline audit /data/broker-a /data/broker-b
    """
    with run.tasks("audit") as tasks:
        from holdfast.pipeline.audit import audit_job as job  # noqa: PLC0415

        found = job.audit(tasks, stores, show=run.show)
    run.print_result(found, job.to_report(found), stores)
    if not found.is_clean:
        raise typer.Exit(_FAULTY)


@pipeline_command("stats")
def stats(
    run: JobRun,
    *,
    stores: StoresArgument,
    hot: Annotated[int, typer.Option(min=1, help="How many keys and tags to report.")] = 20,
) -> None:
    """Report statistics of messages: by topic, queue and time, sizes, born-to-store times, frequent keys and tags.

    Example: holdfast pipeline stats /data/broker-a /data/broker-b --html stats.html
    """
    with run.tasks("stats") as tasks:
        from holdfast.pipeline.stats import stats_job as job  # noqa: PLC0415

        found = job.stats(tasks, stores, hot_max=hot, show=run.show)
    run.print_result(found, job.to_report(found), stores)


@pipeline_command("convert-index")
def convert_index(
    run: JobRun,
    *,
    stores: StoresArgument,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The topic.")],
    to: Annotated[ConvertedKind, typer.Option(help="`batch`: by record, 46 bytes; `simple`: by message, 20 bytes.")],
) -> None:
    """Convert the index of a topic to the other kind, in folders of stopped brokers or in copies of them.

    Like `holdfast index convert`, but with many tasks in parallel; executors write into the folders. May be interrupted
    at any time: run it again to continue.

    Example: holdfast pipeline convert-index /data/broker-a /data/broker-b --topic orders --to batch
    """
    with run.tasks("convert-index") as tasks:
        from holdfast.pipeline.convert import convert_job as job  # noqa: PLC0415

        paths = [store.partition("=")[2] or store for store in stores]
        found = job.convert_index(tasks, paths, topic, to, show=run.show)
    run.print_result(found, job.to_report(found), stores)


@pipeline_command("archive")
def archive(
    run: JobRun,
    *,
    stores: StoresArgument,
    target: Annotated[str, typer.Option("--to", metavar="FOLDER", help="The archive; created if it does not exist.")],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="PATTERN", help="Only these topics; repeatable; give the same at every run."),
    ] = None,
    hold: Annotated[
        bool, typer.Option("--hold/--no-hold", help="Make the brokers keep their log until it is archived.")
    ] = True,
) -> None:
    """Add the messages stored since the last run to an archive, as Parquet by topic and day; each message once.

    Exit status 0 if the archive is complete, 1 if messages were lost before they were archived, or cannot be read. Give
    it the folders of all brokers of a cluster: then the offsets of logical queues have no gaps.

    Example: holdfast pipeline archive /data/broker-a /data/broker-b --to /archive
    """
    with run.tasks("archive") as tasks:
        from holdfast.pipeline.archive import archive_job as job  # noqa: PLC0415

        found = job.archive(tasks, stores, target, topics=topics or (), holds=hold, show=run.show)
    run.print_result(found, job.to_report(found), stores)
    if not found.is_complete or found.stuck:
        raise typer.Exit(_FAULTY)


@app.command("release")
def release(stores: StoresArgument) -> None:
    """Allow brokers to delete messages that are not archived: their retention depends on age alone again.

    Example: holdfast pipeline release /data/broker-a
    """
    from holdfast.pipeline.archive.retention_hold import release_retention  # noqa: PLC0415 - only this command needs it

    for store in stores:
        release_retention(store.partition("=")[2] or store)


@pipeline_command("backfill")
def backfill(
    run: JobRun,
    *,
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="ARCHIVE", help="An archive, or a table with its columns.")],
    topic: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The static topic that gets the messages.")],
    state: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="Its plan and progress: run it again with the same folder to continue."),
    ],
    where: Annotated[str, typer.Option(metavar="SQL", help="Only these rows.", show_default="all")] = "",
    kind: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="Read it with this Spark format.", show_default="an archive"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="About how many rows to write in one step.")] = 200_000,
    namesrv: NamesrvOption = None,
    profile: ProfileOption = None,
    tls_ca: TlsCaOption = None,
    tls_verify: TlsVerifyOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    access_key: AccessKeyOption = None,
    secret_file: SecretFileOption = None,
    auth_mode: AuthModeOption = None,
) -> None:
    """Write an archive back to a topic: each message once, in order for each key. May be stopped and run again.

    Example: holdfast pipeline backfill /archive --to orders-again --where "topic = 'orders'" --state backfill-1
    """
    # `cluster_flags` and `credentials_of` read them: a flag wins over all variables.
    del namesrv, profile, tls_ca, tls_verify, tls_cert, tls_key, access_key, secret_file, auth_mode
    cluster = find_cluster(cluster_flags(context), os.environ)
    with run.tasks(BACKFILL) as tasks:
        spark = getattr(tasks, "spark", None)
        if spark is None:
            raise ConfigError("a backfill needs Spark: give another --master")
        from holdfast.pipeline.archive import backfill as job  # noqa: PLC0415

        frame = job.read_archive(spark, source) if kind is None else spark.read.format(kind).load(source)
        found = job.backfill(
            frame,
            cluster.namesrv,
            topic,
            state,
            source=source,
            where=where,
            rows_per_piece=rows,
            show=run.show,
            tls=cluster.tls,
            credentials=credentials_of(context),
        )
    run.print_result(found, job.to_report(found), [source])
