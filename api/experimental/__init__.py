"""`mindspore.experimental`: optimizers whose learning rates schedulers change."""
