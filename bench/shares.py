"""Shares of what the machine can do at most: products a second, bytes a second."""

from tables import plural, table


def best_rate(lines, threads, quantity, reference):
    """`quantity` (flops or bytes) a second of the fastest run of the work `reference`, whoever made it; None if
    there was none."""
    runs = [l for l in lines if l["work"] == reference and l["threads"] == threads]
    return max(
        (l[quantity] / seconds for l in runs for seconds in (l["ours"], l["theirs"]) if seconds), default=None
    )


def shares_of(lines, threads, quantity, reference):
    """{work: (ours, the best peer's)}: shares of that rate; no peer: 0."""
    top = best_rate(lines, threads, quantity, reference)
    shares = {}
    for l in lines:
        if top and l.get(quantity) and l["work"] != reference and l["threads"] == threads:
            _, peer = shares.get(l["work"], (0, 0))
            theirs = l[quantity] / l["theirs"] / top if l["theirs"] else 0
            shares[l["work"]] = (l[quantity] / l["ours"] / top, max(peer, theirs))
    return shares


def ceiling_shares(lines, threads):
    return shares_of(lines, threads, "flops", "ceiling")


def bandwidth_shares(lines, threads):
    return shares_of(lines, threads, "bytes", "copy")


def shares_table(shares):
    percent = lambda share: f"{100 * share:.0f} %"
    rows = [[work, percent(ours), percent(peer) if peer else ""] for work, (ours, peer) in shares.items()]
    return table(["work", "ours", "best peer"], rows)


def ceiling(lines):
    """How near works come to what the best matrix product of this run does."""
    out = []
    for threads in sorted({l["threads"] for l in lines}):
        shares = ceiling_shares(lines, threads)
        if shares:
            out += [
                f"### Share of the matmul ceiling, {plural(threads)}",
                "",
                "The ceiling is the fastest product of large square matrices in this run, ours or a peer's: "
                f"{best_rate(lines, threads, 'flops', 'ceiling') / 1e9:.0f} GFLOP/s. Counted are the products that a work "
                "cannot do without. Where a peer is at p % of the ceiling nobody can be more than 100 / p "
                "times as fast (products that fit into the cache may be faster than the ceiling's).",
                "",
                *shares_table(shares),
            ]
    return out


def bandwidth(lines):
    """How near works come to reading their inputs and writing their outputs once."""
    shares = bandwidth_shares(lines, 1)
    if not shares:
        return []
    return [
        "### Share of the bandwidth of a copy",
        "",
        "Counted are inputs and outputs, once each, over the bytes a second of the fastest copy in this run.",
        "",
        *shares_table(shares),
    ]
