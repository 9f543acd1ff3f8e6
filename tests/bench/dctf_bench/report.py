# SPDX-License-Identifier: Apache-2.0
"""Results as a table on the screen and as a section of docs/benchmarks.md."""

import os
import re

HEAD = '''# Benchmarks

Written by `tests/bench/run.sh`; each section by the run that its first line names. Every figure stands beside that of a named
alternative, measured in the same run and in turn with it. Figures are medians; the ratio is ours / theirs, with the lowest and
highest of the single rounds in brackets. Where the unit is a rate or a share more is better, where it is a time, a size or CPU less
is. Targets are shown, not judged.

```sh
tests/bench/run.sh                # all of it, as root
tests/bench/run.sh hot small      # some of it
tests/bench/run.sh --quick        # small sizes, to see that it works
tests/bench/run.sh --help
```
'''


def number(value):
    if value is None:
        return ''
    if value == 0:
        return '0'
    if abs(value) >= 100:
        return f'{value:.0f}'
    return f'{value:.2f}' if abs(value) >= 0.1 else f'{value:.3g}'


def _cells(row):
    ratio = number(row.ratio)
    if row.ratio_range:
        ratio += ' ({} – {})'.format(*[number(r) for r in row.ratio_range])
    return [row.what, number(row.our_value), row.unit, row.against, number(row.their_value), ratio, row.target]


_COLUMNS = ['', 'dctffs', 'unit', 'against', 'theirs', 'ratio', 'target']


def text_table(rows):
    cells = [_COLUMNS] + [_cells(row) for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells)


def section(name, module, rows, notes, measured):
    lines = [f'<!-- {name} -->', f'## {module.TITLE}', '', f'*{measured}*', '', module.ABOUT, '',
             '| ' + ' | '.join(_COLUMNS) + ' |', '|' + '---|' * len(_COLUMNS)]
    lines += ['| ' + ' | '.join(_cells(row)) + ' |' for row in rows]
    if notes:
        lines += [''] + [f'- {note}' for note in notes]
    return '\n'.join(lines) + '\n'


def update(path, sections, order):
    """Replace these sections of the page and keep the others."""
    kept = {}
    if os.path.exists(path):
        with open(path, encoding='utf-8') as file:
            parts = re.split(r'^<!-- (\w+) -->$', file.read(), flags=re.M)
        kept = {name: f'<!-- {name} -->' + body.rstrip() + '\n' for name, body in zip(parts[1::2], parts[2::2])}
    kept.update(sections)
    with open(path + '.new', 'w', encoding='utf-8') as file:
        file.write('\n'.join([HEAD] + [kept[name] for name in order if name in kept]))
    os.replace(path + '.new', path)
