"""A process that forks the command `nosology`, so that libraries are imported once for the many commands of the pages.

python command_server.py SOCKET            # the server: prints "ready", ends when its standard input is closed
python -IS command_server.py SOCKET WORDS  # the command: has the exit code of `nosology WORDS`
"""

import os
import socket
import sys
from pathlib import Path


def ask(address: str, words: list[str]) -> int:
    """The exit code of a command that the server forks; it has the files, the folder and the variables of this one."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        variables = [f"{name}={value}" for name, value in os.environ.items()]
        message = "\0".join([str(Path.cwd()), str(len(words)), *words, *variables]).encode(errors="surrogateescape")
        socket.send_fds(server, [len(message).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(message)
        return int.from_bytes(server.recv(1) or b"\x01", "big")


def serve(address: str) -> None:
    """Forks a process for each command until standard input is closed."""
    import select
    import signal

    import matplotlib.pyplot  # noqa: F401
    import sklearn.linear_model  # noqa: F401

    import nosology.claims.grouping
    import nosology.cli
    import nosology.evaluation.measure
    import nosology.models.linear.linear_trainer
    import nosology.serving.coder  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listening.close()
                _run(connection)
            connection.close()


def _run(connection: socket.socket) -> None:
    """Runs a command in this process, which ends then."""
    from nosology.__main__ import main

    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    message = b""
    while len(message) < int.from_bytes(size, "big"):
        message += connection.recv(1 << 16)
    folder, count, *rest = message.decode(errors="surrogateescape").split("\0")
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0)
    os.chdir(folder)
    sys.argv = ["nosology", *rest[: int(count)]]
    os.environ.clear()
    os.environ.update(variable.split("=", 1) for variable in rest[int(count) :])
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        connection.sendall(bytes([code & 255]))
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
