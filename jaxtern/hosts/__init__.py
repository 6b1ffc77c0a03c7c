"""Many processes that train together: who they are, whether they are there, how to start them on one machine."""
