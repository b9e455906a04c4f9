import subprocess
import sys

from workers.models.openmp import bound_spinning


def test_what_the_user_has_set_stays() -> None:
    own = {"GOMP_SPINCOUNT": "7"}
    bound_spinning(own)
    assert own == {"GOMP_SPINCOUNT": "7"}
    waiting = {"OMP_WAIT_POLICY": "active"}
    bound_spinning(waiting)
    assert waiting == {"OMP_WAIT_POLICY": "active"}


def test_the_command_line_says_it_before_torch_is_loaded() -> None:
    code = (
        "import sys, os, workers.cli\n"
        "assert 'torch' not in sys.modules\n"
        "os.environ.pop('GOMP_SPINCOUNT', None)\n"
        "workers.cli.main([])\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ['GOMP_SPINCOUNT'])\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert int(out.splitlines()[-1]) > 0
