"""`mindspore.experimental`: optimizers whose learning rates are changed by schedulers."""
