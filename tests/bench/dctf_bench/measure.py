# SPDX-License-Identifier: Apache-2.0
"""Samples, medians and ratios; fio and the small reader."""

import json
import statistics

from .host import MIB
from .work import run


class Samples(dict):
    """Samples by the name of the contestant."""

    def median(self, name):
        return statistics.median(self[name])


def alternate(runs, contestants):
    """Run every contestant `runs` times, in turn, each round beginning with another one."""
    names = list(contestants)
    samples = Samples((name, []) for name in names)
    for turn in range(runs):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            samples[name].append(contestants[name]())
    return samples


class Row:
    """One line of a result: ours against theirs."""

    def __init__(self, what, ours, theirs=None, against='', unit='', target=''):
        self.what, self.against, self.unit, self.target = what, against, unit, target
        self.ours = ours if isinstance(ours, list) else [ours]
        self.theirs = theirs if isinstance(theirs, list) or theirs is None else [theirs]

    @property
    def our_value(self):
        return statistics.median(self.ours)

    @property
    def their_value(self):
        return None if self.theirs is None else statistics.median(self.theirs)

    @property
    def ratio(self):
        return self.our_value / self.their_value if self.theirs and self.their_value else None

    @property
    def ratio_range(self):
        """Lowest and highest ratio of one round: how noisy the machine was."""
        if not self.theirs or len(self.ours) < 2 or len(self.ours) != len(self.theirs) or not all(self.theirs):
            return None
        ratios = [a / b for a, b in zip(self.ours, self.theirs)]
        return min(ratios), max(ratios)


def rows(samples, what, unit, targets, ours='dctffs'):
    """A row against each of the others. `targets` is by their names."""
    return [Row(what, samples[ours], samples[name], name, unit, targets.get(name, ''))
            for name in samples if name != ours]


def fio(path, kind, block, size, jobs=1, loops=1, invalidate=False):
    """Bytes per second of synchronous reads of `size` bytes, each job in its own part of the file.
    Advice to the kernel is off: it would reach the file below a native read, but not below a
    FUSE mount."""
    part = size // jobs // MIB * MIB
    output = run('fio', '--name=bench', f'--filename={path}', '--readonly', f'--rw={kind}', f'--bs={block}',
                 f'--size={part}', f'--offset_increment={part}', f'--loops={loops}', '--ioengine=psync',
                 f'--numjobs={jobs}', '--thread', '--group_reporting', '--fadvise_hint=0',
                 f'--invalidate={int(invalidate)}', '--output-format=json')
    read = json.loads(output[output.index('{'):])['jobs'][0]['read']
    return read['io_bytes'] / (read['runtime'] / 1000)


def reader(work, *arguments):
    """Seconds and bytes of bench_reader."""
    seconds, size, _ = run(work.program('tests/bench_reader'), *[str(a) for a in arguments]).split()
    return float(seconds), int(size)
