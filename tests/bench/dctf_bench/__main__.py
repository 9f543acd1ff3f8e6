# SPDX-License-Identifier: Apache-2.0
"""Command line of the benchmarks; tests/bench/run.sh builds and calls it."""

import argparse
import datetime
import os
import signal
import sys
import time
import traceback

from . import cluster, cold, encoder, epochs, gate, host, hot, listings, memory, peers, remount, report, s3, share, small, tree, warm
from .work import Work

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BENCHES = {'hot': hot, 'warm': warm, 'small': small, 'epochs': epochs, 'remount': remount, 'tree': tree,
           'memory': memory, 'cold': cold, 'cluster': cluster, 's3': s3, 'share': share, 'listings': listings,
           'gate': gate, 'encoder': encoder, 'peers': peers}


def arguments():
    parser = argparse.ArgumentParser(prog='tests/bench/run.sh', description='Benchmarks of dctffs. Root only.')
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(BENCHES) + ' (default: all)')
    parser.add_argument('--runs', type=int, default=0, help='runs of each (default 5; with --quick 2)')
    parser.add_argument('--epochs', type=int, default=0, help='epochs counted, after the first (default 4; with --quick 2)')
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--quick', action='store_true', help='small sizes; the page goes to BUILD/benchmarks.md')
    size.add_argument('--long', action='store_true', help='a million names and shards where it is about their number')
    parser.add_argument('--dir', default='/var/tmp', help='where source and cache lie, on ext4 or XFS (default /var/tmp)')
    parser.add_argument('--build', default=os.path.join(ROOT, 'build', 'bench'), help='build directory (default build/bench)')
    parser.add_argument('--out', help='page to write (default docs/benchmarks.md)')
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHES:
            parser.error(f'no benchmark {name}; there are {", ".join(BENCHES)}')
    options.names = options.names or list(BENCHES)
    options.runs = options.runs or (2 if options.quick else 5)
    options.epochs = options.epochs or (2 if options.quick else 4)
    if not options.out:
        options.out = (os.path.join(options.build, 'benchmarks.md') if options.quick
                       else os.path.join(ROOT, 'docs', 'benchmarks.md'))
    return options


def measured_line(options, load_before):
    facts = host.describe(options.dir)
    kind = 'quick run, ' if options.quick else 'long run, ' if options.long else ''
    return (f'{datetime.date.today()}, revision {host.revision(ROOT)}, {kind}{options.runs} runs; '
            + '; '.join(f'{name} {value}' for name, value in facts)
            + f'; load {load_before:.1f} before, {host.load():.1f} after.')


def run_one(name, work, options):
    """The section for the page, or None when the benchmark could not be made."""
    load = host.load()
    begin = time.monotonic()
    print(f'== {BENCHES[name].TITLE}', file=sys.stderr, flush=True)
    try:
        rows, notes = BENCHES[name].bench(work)
    except Exception:
        traceback.print_exc()
        return None
    finally:
        work.clean()
    print(f'\n{BENCHES[name].TITLE} ({time.monotonic() - begin:.0f} s)\n{report.text_table(rows)}')
    for note in notes:
        print(f'  {note}')
    sys.stdout.flush()
    return report.section(name, BENCHES[name], rows, notes, measured_line(options, load))


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def on_signal(_number, _frame):
    """Once: what follows is the clean-up, whose every wait is bounded."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main():
    options = arguments()
    if os.geteuid() != 0:
        print('The benchmarks mount and drop caches: run them as root.', file=sys.stderr)
        return 2
    for number in SIGNALS:
        signal.signal(number, on_signal)
    failed = []
    try:
        with Work(options.dir, os.path.abspath(options.build), options) as work:
            for name in options.names:
                section = run_one(name, work, options)
                if section:
                    report.update(options.out, {name: section}, BENCHES)
                else:
                    failed.append(name)
    except KeyboardInterrupt:
        print('interrupted; everything is unmounted and removed', file=sys.stderr)
        return 130
    print(f'\nwritten to {options.out}')
    if failed:
        print(f'not measured: {", ".join(failed)}')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
