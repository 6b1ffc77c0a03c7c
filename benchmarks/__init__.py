"""Measurements: every folder is a command, which prints a table and writes JSON.

    accuracy   methods compared by trained networks; .over_time, .gradient_noise
    exchange   one mean over slow links, beside torch's; .plot, .plan_error
    training   whole steps over slow links, or training to an accuracy; .plain_step, .pooling
    kernels    every kernel beside a copy; .instructions, .noise
    feed       what a batch costs
    chaos      runs that are killed, cut off or damaged; .table
    netlab     hosts on a slow network within one machine, for all that need them
    results    what was measured for docs/

`python -m benchmarks.kernels --help` tells the rest, and so does `python -m benchmarks.kernels.noise --help`.
"""
