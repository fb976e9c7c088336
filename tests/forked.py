"""A Python that starts in milliseconds with torch imported: for tests whose subject is not the start."""

import atexit
import functools
import os
import pkgutil
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import groundup

_HERE = Path(__file__).parent
_LIBRARIES = (
    *("torch._dynamo", "torch.distributed.run", "torch.distributed.tensor.parallel"),
    *("transformers.models.auto", "transformers.models.gpt2.modeling_gpt2"),
    "transformers.models.llama.modeling_llama",
)


@functools.cache
def programs() -> Path:
    """A folder with ``python`` and ``groundup``, which behave as those beside ``sys.executable``.

    What they run is forked from a server of this test process, begun at the first call: see
    ``fork_server.py``. Only Linux can tell a process's end as that needs: elsewhere they are the real ones.
    """
    if sys.platform != "linux":
        return Path(sys.executable).parent
    folder = Path(tempfile.mkdtemp(prefix="groundup-tests-"))
    client = folder / "python"
    client.write_text(f"#!{sys.executable} -IS\n{(_HERE / 'fork_client.py').read_text()}")
    client.chmod(0o755)
    (folder / "groundup").symlink_to(client)
    modules = [module.name for module in pkgutil.walk_packages(groundup.__path__, "groundup.")]
    modules.remove("groundup.__main__")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(100)  # who comes before it has imported waits
        words = [sys.executable, str(_HERE / "fork_server.py"), str(listener.fileno()), str(client)]
        server = subprocess.Popen(
            [*words, *_LIBRARIES, *modules],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},  # read at import
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C reaches the tests alone
        )
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.wait)
    atexit.register(server.terminate)
    return folder


def python() -> str:
    """The path of that ``python``."""
    return str(programs() / "python") if sys.platform == "linux" else sys.executable
