# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one file. The tests run in a child; this process never touches a mount, so
that it can end what hangs and clear up."""

import faulthandler
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from . import mounts
from .env import DCTF, DCTFFS, LONG, Skip
from .place import Place

SKIPPED = 77
_PREFIX = 'dctf-e2e-'


def _why_not():
    if os.geteuid() != 0:
        return 'end-to-end tests need root'
    if not os.path.exists('/dev/fuse'):
        return 'end-to-end tests need /dev/fuse'
    try:
        os.close(os.open('/dev/fuse', os.O_RDWR))
    except OSError as error:
        return f'/dev/fuse cannot be opened: {error.strerror}'
    for program in (DCTFFS, DCTF):
        if not os.access(program, os.X_OK):
            sys.exit(f'{program} is not there: build first, or set DCTF_BUILD_DIR')
    return None


def _kill_noted(root):
    """End the daemons that a test started and did not end."""
    try:
        with open(os.path.join(root, 'pids')) as file:
            pids = [int(line) for line in file]
    except FileNotFoundError:
        return
    for pid in pids:
        try:
            with open(f'/proc/{pid}/cmdline') as file:
                ours = root in file.read()
            if ours:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass


def _clear(root):
    """Remove everything below `root`; returns what was still mounted."""
    _kill_noted(root)
    left = mounts.clear(root)
    subprocess.run(['rm', '-rf', '--one-file-system', root], check=False)
    return left


def _clear_stale():
    """What runs before us left when they were killed."""
    for root in glob.glob(os.path.join(tempfile.gettempdir(), _PREFIX + '*')):
        pid = os.path.basename(root)[len(_PREFIX):].split('-')[0]
        if pid.isdigit() and not os.path.exists(f'/proc/{pid}'):
            _clear(root)


def _run_one(root, name, test):
    """True, False, or None for skipped."""
    place = Place(root, name)
    start = time.monotonic()
    print(f'     {name}', flush=True)
    try:
        test(place)
        place.check()
        verdict, word, why = True, 'ok', ''
    except Skip as skipped:
        verdict, word, why = None, 'skip', f': {skipped}'
    except BaseException as error:
        verdict, word, why = False, 'FAIL', ''
        print(traceback.format_exc().encode('utf-8', 'backslashreplace').decode())
        place.complain()
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        if os.environ.get('DCTF_KEEP') and not verdict:
            print(f'     kept: {place.root}')
        else:
            place.clear()
    print(f'{word:4} {name} ({time.monotonic() - start:.1f} s){why}', flush=True)
    return verdict


def _run_all(root, tests):
    verdicts = [_run_one(root, name, test) for name, test in tests]
    failed = verdicts.count(False)
    print(f'{verdicts.count(True)} passed, {failed} failed, {verdicts.count(None)} skipped')
    return 1 if failed else SKIPPED if all(v is None for v in verdicts) else 0


def _supervise(pid, seconds):
    """The exit status of the child, or 1 when it took too long."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            print(f'FAIL the tests took longer than {seconds:.0f} s; they stand here:', flush=True)
            os.kill(pid, signal.SIGUSR1)
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)
            return 1
        time.sleep(0.02)


def main(names):
    """Run the tests among `names`, or those named on the command line, and exit."""
    why = _why_not()
    if why:
        print(f'skipped: {why}')
        sys.exit(SKIPPED)
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(1))
    tests = [(n, f) for n, f in names.items() if n.startswith('test_') and callable(f)]
    if len(sys.argv) > 1:
        tests = [(n, f) for n, f in tests if any(word in n for word in sys.argv[1:])]
    if not tests:
        sys.exit('no such test')
    _clear_stale()
    root = tempfile.mkdtemp(prefix=f'{_PREFIX}{os.getpid()}-')
    os.chmod(root, 0o755)
    status = 1
    try:
        pid = os.fork()
        if pid == 0:
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            code = 1
            try:
                code = _run_all(root, tests)
            finally:
                sys.stdout.flush()
                os._exit(code)
        seconds = float(os.environ.get('DCTF_E2E_LIMIT') or (3600 if LONG else 560))
        status = _supervise(pid, seconds)
    finally:
        if os.environ.get('DCTF_KEEP') and status != 0:
            print(f'kept: {root}')
        else:
            left = _clear(root)
            if left and status == 0:
                print(f'FAIL left mounted: {left}')
                status = 1
            shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if status < 0 else status)
