"""One module per way of training: `train(job, prepared, here, gate)` makes `job.steps` steps and calls `gate.step(loss)` after each."""
