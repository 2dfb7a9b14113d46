"""`mindspore.experimental`: optimizers with learning rate schedulers."""
