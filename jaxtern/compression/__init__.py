"""A pytree of local gradients to the pytree of their mean, over few bits."""
