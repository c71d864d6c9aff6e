"""Numbers and tables of the page, as text."""


def plural(threads):
    return f"{threads} thread{'s' * (threads > 1)}"


def scaled(seconds, line):
    """A time in the unit of its case."""
    per = seconds / line["tokens"] if line["tokens"] else seconds
    return f"{per * 1e6:.3g}"


def ratio_text(ratio):
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def table(head, rows):
    align = ["---"] + ["---:"] * (len(head) - 1)
    return ["| " + " | ".join(row) + " |" for row in (head, align, *rows)] + [""]
