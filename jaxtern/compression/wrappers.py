"""Reducers around other reducers."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxtern.compression import collectives
from jaxtern.compression.float_mean import float_mean
from jaxtern.compression.network.links import Traffic, share_bytes
from jaxtern.compression.reducer import SHARED, Group, Layout, Reduced, Reducer, State, Tensors, put, share_out
from jaxtern.kernels import derive_key

Predicate = Callable[[str, tuple[int, ...]], bool]  # takes a tensor's path and shape


def _require_reducer(*given: Any) -> None:
    for each in given:
        if not isinstance(each, Reducer):
            raise ValueError(f"reducer={each!r}: must be a jaxtern.Reducer, such as jaxtern.ternary()")


def zeros(layout: Layout) -> Tensors:
    """float32 zeros with the shapes of a layout."""
    return [jnp.zeros(shape, jnp.float32) for shape in layout.shapes]


def plus(left: Tensors, right: Tensors) -> Tensors:
    """Sums in float32, tensor by tensor."""
    return [a.astype(jnp.float32) + b.astype(jnp.float32) for a, b in zip(left, right, strict=True)]


def beside(reducer: Reducer, first: Callable[[Layout], Any], reduce: Callable) -> Reducer:
    """A reducer around another, whose `State.local` is (its own, that of the other).

    Args:
      reducer: the wrapped reducer, whose traffic is that of the whole.
      first: layout -> the wrapper's own first local state: floats that workers owe to the mean.
      reduce: (tensors of each worker here, own state of each, State of `reducer`, Group) -> result of `reducer`, and
        new own state of each.
    """

    _require_reducer(reducer)

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

    return Reducer(init, reduce_both, reducer.traffic, resize, reducer.floats)


def error_feedback(reducer: Reducer) -> Reducer:
    """Adds to each worker's tensors what it has not sent so far.

        p = g + e,  mean = reduce(p),  e' = p - sent(p)

    What compression leaves out is sent later, so that even a biased reducer loses nothing for good.

    Args:
      reducer: a reducer that returns `Reduced.sent`, and leaves out less than it is given; `terngrad` leaves out more,
        so what it owes grows without end.

    Returns:
      A reducer whose local state is (e, that of `reducer`), where e are float32 tensors in the shapes of the layout.

    Reference:
      Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019, algorithm 2,
      with the learning rate left to the optimiser.
    """

    def reduce(workers: list[Tensors], errors: list[Tensors], inner: State, group: Group) -> tuple[Reduced, Any]:
        if group.owes:
            raise ValueError("error_feedback: of a reducer with feedback of its own; make that with feedback=False")
        owed = [plus(own, error) for own, error in zip(workers, errors, strict=True)]
        reduced = reducer.reduce(owed, inner, dataclasses.replace(group, tracks=True, owes=True))
        sent = require_sent(reduced, group, "error_feedback")
        return reduced, [[p - s for p, s in zip(*pair, strict=True)] for pair in zip(owed, sent, strict=True)]

    return beside(reducer, zeros, reduce)


def require_sent(reduced: Reduced, group: Group, asker: str) -> list[Tensors]:
    """`Reduced.sent`, which `asker` needs; raises ValueError if it is missing, or of other workers or shapes."""
    if reduced.sent is None:
        raise ValueError(f"{asker}: the reducer does not tell what was sent (Reduced.sent), as a delayed one does not")
    shapes, wanted = [[list(x.shape) for x in own] for own in reduced.sent], list(map(list, group.layout.shapes))
    if shapes != [wanted] * group.local_workers:
        raise ValueError(f"{asker}: Reduced.sent has shapes {shapes}: must be {group.local_workers} times {wanted}")
    return reduced.sent


def delayed(reducer: Reducer) -> Reducer:
    """Returns the mean of the update before, so that its exchange runs beside the computation of this one.

    The first mean is zero. Each worker keeps its tensors until the next update, which exchanges them.

    Returns:
      A reducer whose local state is (the tensors, the state of `reducer`).
    """

    def late(reducer: Reducer) -> Reducer:
        def reduce(workers: list[Tensors], before: list[Tensors], inner: State, group: Group) -> tuple[Reduced, Any]:
            late = dataclasses.replace(group, late=group.late + 1, tracks=False)
            kept = [[x.astype(dtype) for x, dtype in zip(own, group.layout.dtypes, strict=True)] for own in workers]
            return reducer.reduce(before, inner, late)._replace(sent=None), kept

        return beside(reducer, lambda layout: list(map(jnp.zeros, layout.shapes, layout.dtypes)), reduce)

    return late(reducer)._replace(floats=late(reducer.floats or float_mean(in_order=True)))


def require_match(name: str, applies: Predicate, layout: Layout) -> None:
    """Raises ValueError, with the paths that there are, if a predicate is true of no tensor."""
    if layout.paths and not any(map(applies, layout.paths, layout.shapes)):
        paths = ", ".join(map(repr, layout.paths[:8])) + (", ..." if layout.paths[8:] else "")
        raise ValueError(f"{name}: must be true of a tensor, and is of none; their paths are {paths}")


def partition(rules: Sequence[tuple[Predicate, Reducer]], rest: Reducer, may_be_empty: bool = False) -> Reducer:
    """Several reducers for one tree: path and shape decide which one reduces a tensor.

        partition([(lambda path, shape: math.prod(shape) < 1000, float_mean(in_order=True))], top_k(0.001))

    Args:
      rules: pairs of a function (path, shape) -> bool and a reducer, which reduces the tensors for which the function
        is the first to return True.
      rest: the reducer of all other tensors.
      may_be_empty: whether a rule may match no tensor; if not, that raises ValueError.

    Returns:
      A reducer whose state is a tuple of theirs.
    """

    _require_reducer(rest, *(each for _, each in rules))

    def parts_of(layout: Layout) -> list[tuple[Reducer, list[int]]]:
        for number, (applies, _) in enumerate(rules if not may_be_empty else ()):
            require_match(f"rules[{number}]", applies, layout)
        named, last = list(zip(layout.paths, layout.shapes, strict=True)), len(rules)
        owners = [next((n for n, (applies, _) in enumerate(rules) if applies(*each)), last) for each in named]
        reducers = [*(each for _, each in rules), rest]
        return [(each, [at for at, owner in enumerate(owners) if owner == n]) for n, each in enumerate(reducers)]

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
                put(whole, places, require_sent(reduced, selected, "partition")[worker])
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

    return Reducer(init, reduce, traffic, resize, rest.floats)


def bytes_of_tensors(traffic: Traffic, layout: Layout) -> tuple[float, ...]:
    """Bytes sent for each tensor."""
    return traffic.of_tensors or share_bytes(traffic.bytes, layout.sizes)


def hierarchical(fast: Reducer, slow: Reducer, fast_axis_name: str | tuple[str, ...]) -> Reducer:
    """Averages over the devices of each worker by fast links, then over the workers by slow ones.

    Each device of a worker exchanges a part of the words over the slow links, and they join the results. So a worker
    sends its words once, however many devices it has.

    Args:
      fast: reducer over the devices of a worker, without state.
      slow: reducer over the workers.
      fast_axis_name: axes of `shard_map` over the devices of one worker.

    Returns:
      A reducer with the state and the traffic of `slow`. Its `floats` average over all devices, too.
    """
    names = collectives.as_axis_names(fast_axis_name)
    _require_reducer(fast, slow)

    def over(slow: Reducer) -> Reducer:
        def init(layout: Layout, num_workers: int) -> State:
            if jax.tree.leaves(fast.init(layout, 1)):
                raise ValueError("fast: must be a reducer without state")
            return slow.init(layout, num_workers)

        def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
            if set(names) & set(group.axes.workers):
                raise ValueError(f"fast_axis_name={fast_axis_name!r}: must name other axes than {group.axes.workers!r}")
            if group.late or group.owes:
                raise ValueError("hierarchical: must be around wrappers with state: hierarchical(fast, delayed(slow))")
            inside = dataclasses.replace(group, axes=collectives.Axes(names), local_workers=1, tracks=False)
            # A seed for each worker, so that this noise is used nowhere else.
            seeds = [derive_key(group.seed, index, 2**32 - 1 - len(SHARED))[0] for index in group.indices()]
            groups = [dataclasses.replace(inside, seed=seed) for seed in seeds]
            none, pairs = fast.init(group.layout, 1), zip(workers, groups, strict=True)
            averaged = [fast.reduce([own], State(none.shared, [none.local]), at).mean for own, at in pairs]
            axes = collectives.Axes(group.axes.workers, names)
            return slow.reduce(averaged, state, dataclasses.replace(group, axes=axes))

        return Reducer(init, reduce, slow.traffic, slow.resize)

    return over(slow)._replace(floats=over(slow.floats or float_mean(in_order=True)))


def idle(reducer: Reducer) -> Reducer:
    """The float mean, for steps without compression; it keeps the state of a reducer as it is."""
    plain = float_mean()

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        return plain.reduce(workers, State(local=[()] * len(workers)), group)._replace(state=state)

    return Reducer(reducer.init, reduce, plain.traffic, reducer.resize)
