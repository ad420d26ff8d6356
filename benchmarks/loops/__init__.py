"""One module per training loop: `train(job, prepared, machine, timer)` makes `job.steps` steps and calls `timer.step(loss)` after each."""
