"""Many processes that train together: who they are, whether they are there, how to start and to lose them."""
