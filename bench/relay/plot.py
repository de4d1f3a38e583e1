"""Static SVG: one row per peer, with a dot for each sample and a bar for the median, to show the spread."""
import html
import math
import statistics

WIDTH, LEFT, RIGHT, ROW, TOP, BOTTOM = 760, 170, 70, 26, 44, 34
OWN, PEER, LIMIT, INK, FAINT = "#c2410c", "#1d4ed8", "#6b7280", "#111827", "#e5e7eb"


def steps(highest):
    """Round numbers from 0 to the first one at or above `highest`, at most seven of them.

    >>> steps(19.4)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    size = 10 ** math.floor(math.log10(highest)) if highest > 0 else 1
    part = next(p for p in (0.1, 0.2, 0.5, 1, 2) if highest <= size * p * 6)
    count = max(1, math.ceil(highest / (size * part)))
    return [float(f"{i * size * part:.6g}") for i in range(count + 1)]


def colour(name, limits):
    if name.startswith("parshall"):
        return OWN
    return LIMIT if name in limits else PEER


def dots(title, unit, rows, limits=(), form="{:.2f}"):
    """An SVG document. `rows` is [(name, samples)], from top to bottom."""
    ticks = steps(max(max(samples) for _, samples in rows))
    inner = WIDTH - LEFT - RIGHT
    height = TOP + ROW * len(rows) + BOTTOM
    x = lambda value: LEFT + inner * value / ticks[-1]  # noqa: E731
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="600" fill="{INK}">{html.escape(title)}</text>',
    ]
    for tick in ticks:
        out.append(f'<line x1="{x(tick):.1f}" y1="{TOP - 8}" x2="{x(tick):.1f}" y2="{height - BOTTOM}" stroke="{FAINT}"/>')
        out.append(
            f'<text x="{x(tick):.1f}" y="{height - BOTTOM + 16}" text-anchor="middle" fill="{LIMIT}">{tick:,g}</text>'
        )
    out.append(f'<text x="{WIDTH - 8}" y="{height - BOTTOM + 16}" text-anchor="end" fill="{LIMIT}">{html.escape(unit)}</text>')
    for index, (name, samples) in enumerate(rows):
        y, ink, median = TOP + ROW * index + ROW / 2, colour(name, limits), statistics.median(samples)
        out.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end" fill="{INK}">{html.escape(name)}</text>')
        out.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{x(median):.1f}" y2="{y:.1f}" stroke="{ink}" stroke-width="6" '
            'stroke-opacity="0.18"/>'
        )
        for sample in samples:
            out.append(f'<circle cx="{x(sample):.1f}" cy="{y:.1f}" r="3" fill="{ink}" fill-opacity="0.45"/>')
        out.append(
            f'<line x1="{x(median):.1f}" y1="{y - 8:.1f}" x2="{x(median):.1f}" y2="{y + 8:.1f}" stroke="{ink}" '
            'stroke-width="2"/>'
        )
        out.append(
            f'<text x="{max(map(x, samples)) + 8:.1f}" y="{y + 4:.1f}" fill="{INK}">{form.format(median)}</text>'
        )
    return "\n".join(out + ["</svg>"]) + "\n"
