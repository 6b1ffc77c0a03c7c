"""Learning rates over steps."""

import optax

from jaxtern.training.recipe import Recipe


def create_schedule(recipe: Recipe, num_examples: int) -> optax.Schedule:
    """The rate at every step.

    fixed        rate
    exponential  rate * decay_factor^floor(step / steps in decay_epochs)
    polynomial   rate * (1 - step / num_steps)^power
    cosine       rate * (1 + cos(pi step / num_steps)) / 2

    Args:
      recipe: names the schedule and its numbers.
      num_examples: in one epoch.
    """
    if recipe.schedule == "fixed":
        return optax.constant_schedule(recipe.learning_rate)
    if recipe.schedule == "exponential":
        steps = max(1, int(recipe.decay_epochs * num_examples / recipe.batch_size))
        return optax.exponential_decay(recipe.learning_rate, steps, recipe.decay_factor, staircase=True)
    if recipe.schedule == "polynomial":
        return optax.polynomial_schedule(recipe.learning_rate, 0.0, recipe.power, recipe.num_steps)
    return optax.cosine_decay_schedule(recipe.learning_rate, recipe.num_steps)
