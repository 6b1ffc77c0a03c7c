"""Reducers made of reducers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxtern.compression import collectives
from jaxtern.compression.float_mean import float_mean
from jaxtern.compression.network.links import Traffic
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors, put, share_out

Predicate = Callable[[str, tuple[int, ...]], bool]  # of a tensor's path and shape


def zeros(layout: Layout) -> Tensors:
    """float32 zeros in the shapes of a layout."""
    return [jnp.zeros(shape, jnp.float32) for shape in layout.shapes]


def plus(left: Tensors, right: Tensors) -> Tensors:
    """Sums in float32, tensor by tensor."""
    return [a.astype(jnp.float32) + b.astype(jnp.float32) for a, b in zip(left, right, strict=True)]


def beside(reducer: Reducer, first: Callable[[Layout], Any], reduce: Callable) -> Reducer:
    """A reducer around another, whose `State.local` is (its own, that of the other).

    Args:
      reducer: that is wrapped; its traffic is that of the whole.
      first: layout -> the wrapper's own local state at the start, of floats that workers owe to the mean.
      reduce: (tensors of each worker here, own states of each, State of `reducer`, Group) -> what `reducer` made of
        them, and own states of each.
    """

    def init(layout: Layout, num_workers: int) -> State:
        inner = reducer.init(layout, num_workers)
        return State(inner.shared, (first(layout), inner.local))

    def reduce_both(workers: list[Tensors], state: State, group: Group) -> Reduced:
        own, inner = map(list, zip(*state.local, strict=True))
        reduced, own = reduce(workers, own, State(state.shared, inner), group)
        both = list(zip(own, reduced.state.local, strict=True))
        return reduced._replace(state=State(reduced.state.shared, both))

    def resize(local: Any, layout: Layout, num_workers: int) -> Any:
        return share_out(local[0], layout, num_workers), reducer.resize(local[1], layout, num_workers)

    return Reducer(init, reduce_both, reducer.traffic, resize)


def error_feedback(reducer: Reducer) -> Reducer:
    """Adds to every worker's tensors what it has not sent so far.

        p = g + e,  mean = reduce(p),  e' = p - sent(p)

    What compression leaves out is kept and sent later, so that even a biased reducer leaves nothing out for good.

    Args:
      reducer: any that tells what each worker's part stood for.

    Returns:
      A reducer whose local state is (e: float32 tensors in the shapes of the layout, that of `reducer`).

    Reference:
      Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019, algorithm 2,
      with the rate left to the optimiser behind.
    """

    def reduce(workers: list[Tensors], errors: list[Tensors], inner: State, group: Group) -> tuple[Reduced, Any]:
        owed = [plus(own, error) for own, error in zip(workers, errors, strict=True)]
        reduced = reducer.reduce(owed, inner, dataclasses.replace(group, tracks=True))
        sent = require_sent(reduced, group.layout, "error_feedback")
        return reduced, [[p - s for p, s in zip(*pair, strict=True)] for pair in zip(owed, sent, strict=True)]

    return beside(reducer, zeros, reduce)


def require_sent(reduced: Reduced, layout: Layout, asker: str) -> list[Tensors]:
    """What each worker's part stood for, which `asker` needs.

    Raises:
      ValueError: if the reducer does not tell, or tells of tensors of other shapes.
    """
    if reduced.sent is None:
        raise ValueError(f"{asker}: the reducer does not tell what was sent (Reduced.sent), as a delayed one does not")
    for own in reduced.sent:
        shapes = [list(tensor.shape) for tensor in own]
        if shapes != list(map(list, layout.shapes)):
            raise ValueError(f"{asker}: Reduced.sent has shapes {shapes}: must be {list(map(list, layout.shapes))}")
    return reduced.sent


def delayed(reducer: Reducer) -> Reducer:
    """The mean of the update before, so that the wire is at work beside the computation of this one.

    The first mean is zero. Each worker keeps its tensors until the next update, where they are compressed and
    exchanged; nothing there depends on the gradients that are computed meanwhile.

    Returns:
      A reducer whose local state is (the tensors, the state of `reducer`).
    """

    def reduce(workers: list[Tensors], before: list[Tensors], inner: State, group: Group) -> tuple[Reduced, Any]:
        late = dataclasses.replace(group, late=group.late + 1, tracks=False)
        return reducer.reduce(before, inner, late)._replace(sent=None), workers

    return beside(reducer, lambda layout: list(map(jnp.zeros, layout.shapes, layout.dtypes)), reduce)


def require_match(name: str, applies: Predicate, layout: Layout) -> None:
    """Refuses what is true of none of the tensors, if there are any.

    Raises:
      ValueError: naming the argument, and the paths that there are.
    """
    if layout.paths and not any(map(applies, layout.paths, layout.shapes)):
        paths = ", ".join(map(repr, layout.paths[:8])) + (", ..." if layout.paths[8:] else "")
        raise ValueError(f"{name}: must be true of a tensor, and is of none; their paths are {paths}")


def partition(rules: Sequence[tuple[Predicate, Reducer]], rest: Reducer, may_be_empty: bool = False) -> Reducer:
    """Several reducers in one tree: path and shape decide which one a tensor goes to.

        partition([(lambda path, shape: math.prod(shape) < 1000, float_mean(in_order=True))], top_k(0.001))

    Args:
      rules: (path, shape) -> bool, and the reducer of the tensors for which it is the first to be true.
      rest: the reducer of all others.
      may_be_empty: whether a rule may be true of no tensor. False: its functions refuse a tree of which it is.

    Returns:
      A reducer whose state is a tuple of theirs.
    """

    def parts_of(layout: Layout) -> list[tuple[Reducer, list[int]]]:
        for number, (applies, _) in enumerate(rules if not may_be_empty else ()):
            require_match(f"rules[{number}]", applies, layout)
        return _deal_out(layout, [*rules, (lambda *_: True, rest)])

    def init(layout: Layout, num_workers: int) -> State:
        states = [each.init(layout.select(places), num_workers) for each, places in parts_of(layout)]
        return State(tuple(state.shared for state in states), tuple(state.local for state in states))

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        mean, shared, local = list(workers[0]), [], []
        sent = [list(own) for own in workers] if group.tracks else []
        for number, (reducer, places) in enumerate(parts_of(group.layout)):
            own = State(state.shared[number], [each[number] for each in state.local])
            taken, selected = [[worker[place] for place in places] for worker in workers], group.select(places)
            reduced = reducer.reduce(taken, own, selected) if places else Reduced([], own, taken)
            shared.append(reduced.state.shared)
            local.append(reduced.state.local)
            put(mean, places, reduced.mean)
            for worker, whole in enumerate(sent):
                put(whole, places, require_sent(reduced, selected.layout, "partition")[worker])
        return Reduced(mean, State(tuple(shared), list(zip(*local, strict=True))), sent or None)

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        total, of_tensors = Traffic(), [0.0] * len(layout.paths)
        for reducer, places in parts_of(layout):
            selected = layout.select(places)
            part = reducer.traffic(selected, num_workers) if places else Traffic()
            total += part
            put(of_tensors, places, bytes_of_tensors(part, selected))
        return total._replace(of_tensors=tuple(of_tensors))

    def resize(local: Any, layout: Layout, num_workers: int) -> Any:
        parts = zip(local, parts_of(layout), strict=True)
        return tuple(each.resize(own, layout.select(places), num_workers) for own, (each, places) in parts)

    return Reducer(init, reduce, traffic, resize)


def _deal_out(layout: Layout, rules: Sequence[tuple[Predicate, Reducer]]) -> list[tuple[Reducer, list[int]]]:
    """Each reducer with the places of its tensors; the last rule is true of all."""
    named = list(zip(layout.paths, layout.shapes, strict=True))
    owners = [next(n for n, (applies, _) in enumerate(rules) if applies(*each)) for each in named]
    return [(each, [at for at, owner in enumerate(owners) if owner == n]) for n, (_, each) in enumerate(rules)]


def bytes_of_tensors(traffic: Traffic, layout: Layout) -> tuple[float, ...]:
    """Each tensor's part of what is sent."""
    if traffic.of_tensors is not None:
        return traffic.of_tensors
    total = max(sum(layout.sizes), 1)
    return tuple(traffic.bytes * size / total for size in layout.sizes)


def hierarchical(fast: Reducer, slow: Reducer, fast_axis_name: str | tuple[str, ...]) -> Reducer:
    """First the mean over the devices of one worker, by fast links; then that of the workers, by slow ones.

    The devices of a worker then hold the same tensors; each exchanges its part of the words over the slow axis, and
    they join the results, so that a worker sends the words once, however many devices it has.

    Args:
      fast: over the devices of a worker; without state.
      slow: over the workers.
      fast_axis_name: axes of `shard_map` over the devices of one worker.

    Returns:
      A reducer with the state and the traffic of `slow`.
    """
    names = collectives.as_axis_names(fast_axis_name)

    def init(layout: Layout, num_workers: int) -> State:
        if jax.tree.leaves(fast.init(layout, 1)):
            raise ValueError("fast: must be a reducer without state")
        return slow.init(layout, num_workers)

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        if set(names) & set(group.axes.workers):
            raise ValueError(f"fast_axis_name={fast_axis_name!r}: must name other axes than {group.axes.workers!r}")
        inside = dataclasses.replace(group, axes=collectives.Axes(names), local_workers=1, tracks=False)
        averaged = [fast.reduce([own], State(local=[()]), inside).mean for own in workers]
        axes = collectives.Axes(group.axes.workers, names)
        return slow.reduce(averaged, state, dataclasses.replace(group, axes=axes))

    return Reducer(init, reduce, slow.traffic, slow.resize)


def idle(reducer: Reducer) -> Reducer:
    """The float mean beside the state of a reducer, which it leaves as it is: for steps without compression."""
    plain = float_mean()

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        return plain.reduce(workers, State(local=[()] * len(workers)), group)._replace(state=state)

    return Reducer(reducer.init, reduce, plain.traffic, reducer.resize)
