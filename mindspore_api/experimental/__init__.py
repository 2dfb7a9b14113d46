"""`mindspore.experimental` has optimizers whose learning rates are changed by schedulers."""
