"""The real Java RocketMQ of one version: fetched once with Maven, its programs started as children.

    ~/.cache/rocketmq-peer/VERSION/     *.jar, quiet/ (logging off), conf/ (what 4.x wants to find at home)
    ~/.cache/holdfast-interop/java-VERSION-HASH/   classes compiled from tests/interop/java

Does not know what the programs prove, nor anything of Holdfast.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.child import Child

# Small heap, no second compiler, one collector thread: a JVM that lives for seconds pays for nothing else.
_JVM = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Dfile.encoding=UTF-8",
    "-Drocketmq.client.logUseSlf4j=true",
    # The disk of a build machine is often nearly full; a broker would refuse writes from 90 % on.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
)
_PARTS = ("broker", "namesrv", "tools")
# 5.x reads its logging set-up through a shaded logback, 4.x through the plain one.
_QUIET = {
    "rmq.logback-test.xml": "org.apache.rocketmq.logging.ch.qos.logback",
    "logback-test.xml": "ch.qos.logback",
}
# A cold start takes seconds, but minutes on a machine that is busy with something else.
_READY_TIMEOUT_S = 180.0


class PeerUnavailable(Exception):
    """The Java RocketMQ, or our programs for it, could not be fetched or compiled."""


def cache_home() -> Path:
    """Return the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@dataclass(frozen=True, slots=True)
class JavaPeer:
    """RocketMQ of one version, ready to start."""

    version: str
    jars: Path
    classes: Path | None = field(default=None)

    def start_name_server(self, *, port: int, home: Path) -> Child:
        """Start a name server on loopback and return it once it takes connections."""
        home.mkdir(parents=True, exist_ok=True)
        settings = {"listenPort": str(port), "bindAddress": "127.0.0.1"}
        configuration = _write_properties(home / "namesrv.conf", settings)
        self._copy_configuration(home)
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        child = Child(self._command(home, [main, "-c", str(configuration)]), name=f"Java {self.version} name server")
        return _ready(child)

    def start_broker(
        self,
        *,
        name: str,
        cluster: str,
        port: int,
        name_server: str,
        store: Path,
        settings: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Child:
        """Start a broker on loopback and return it once it serves. It takes port - 2 and port + 1 as well."""
        home = store / ".peer"
        home.mkdir(parents=True, exist_ok=True)
        all_settings = {
            "brokerName": name,
            "brokerClusterName": cluster,
            "brokerId": "0",
            "listenPort": str(port),
            "namesrvAddr": name_server,
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "diskMaxUsedSpaceRatio": "99",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            **(settings or {}),
        }
        configuration = _write_properties(home / "broker.conf", all_settings)
        self._copy_configuration(home)
        main = "org.apache.rocketmq.broker.BrokerStartup"
        command = self._command(home, [*options, main, "-c", str(configuration)])
        child = Child(command, name=f"Java {self.version} broker {name}")
        return _ready(child)

    def start_program(self, main: str, arguments: Sequence[str], *, home: Path, options: Sequence[str] = ()) -> Child:
        """Start one of our own compiled programs; *home* gets whatever the client writes by itself."""
        assert self.classes is not None, "fetch the peer with its programs"
        command = self._command(home, [*options, main, *arguments])
        return Child(command, name=f"Java {self.version} {main}")

    def _copy_configuration(self, home: Path) -> None:
        (home / "conf").mkdir(exist_ok=True)
        for file in (self.jars / "conf").iterdir():
            shutil.copy(file, home / "conf")

    def _command(self, home: Path, rest: Sequence[str]) -> list[str]:
        temporary = home / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)  # a killed broker leaves unpacked native libraries behind
        temporary.mkdir(parents=True)
        homes = [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", f"-Djava.io.tmpdir={temporary}"]
        path = [*([str(self.classes)] if self.classes else []), str(self.jars / "quiet"), str(self.jars / "*")]
        return ["java", *_JVM, *homes, "-cp", ":".join(path), *rest]


def fetch(version: str, programs: Path | None = None) -> JavaPeer:
    """Return the peer of *version*, fetched unless it is cached, with the Java files of *programs* compiled."""
    jars = cache_home() / "rocketmq-peer" / version
    if not jars.is_dir():
        _fill(jars, version)
    return JavaPeer(version, jars, None if programs is None else _compile(version, jars, programs))


def _fill(jars: Path, version: str) -> None:
    """Let *jars* appear complete or not at all."""
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{version}.", dir=jars.parent) as temporary:
        work, new = Path(temporary), Path(temporary, "new")
        new.mkdir()
        (work / "pom.xml").write_text(_project(version), encoding="utf-8")
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={new}"]
        _run(["mvn", "-q", "-B", "-f", str(work / "pom.xml"), *goal], f"Maven could not fetch RocketMQ {version}")
        for folder in ("quiet", "conf"):
            (new / folder).mkdir()
        for file, package in _QUIET.items():
            listener = f'<statusListener class="{package}.core.status.NopStatusListener"/>'
            text = f'<configuration>{listener}<root level="OFF"/></configuration>\n'
            (new / "quiet" / file).write_text(text, encoding="utf-8")
        for part in _PARTS:  # 4.x servers will not start without them
            shutil.copy(new / "quiet" / "logback-test.xml", new / "conf" / f"logback_{part}.xml")
        _publish(new, jars)


def _project(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-{part}</artifactId>"
        f"<version>{version}</version></dependency>"
        for part in _PARTS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>holdfast</groupId><artifactId>interop</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def _compile(version: str, jars: Path, programs: Path) -> Path:
    sources = sorted(programs.glob("*.java"))
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    classes = cache_home() / "holdfast-interop" / f"java-{version}-{digest.hexdigest()[:16]}"
    if classes.is_dir():
        return classes
    classes.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"java-{version}.", dir=classes.parent) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        # Both versions compile the same sources, so what 5.x calls old is still used.
        flags = ["-nowarn", "-Xlint:none", "-proc:none", "-encoding", "UTF-8", "-d", str(new), "-cp", f"{jars}/*"]
        _run(["javac", *flags, *map(str, sources)], f"the Java programs do not compile against RocketMQ {version}")
        _publish(new, classes)
    return classes


def _publish(new: Path, final: Path) -> None:
    """Move *new* into place; where somebody else was first, theirs is as good."""
    try:
        new.rename(final)
    except OSError:
        if not final.is_dir():
            raise


def _run(command: Sequence[str], problem: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailable(f"{problem}:\n{done.stdout[-4000:]}")


def _write_properties(file: Path, settings: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
    return file


def _ready(child: Child) -> Child:
    try:
        child.wait_for_line("boot success", timeout_s=_READY_TIMEOUT_S)
    except BaseException:
        child.kill()
        raise
    return child
