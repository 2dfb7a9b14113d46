"""Tensor parallel LLaMA in MindSpore's style: heads and hidden numbers are shared, and the classes."""


def shard(network, data, tensor):
    by_column, by_row = ((data, 1), (tensor, 1)), ((data, tensor), (1, tensor))
    for layer in network.layers:
        attention, forward = layer.attention, layer.feed_forward
        for dense in (attention.wq, attention.wk, attention.wv, forward.w1, forward.w3):
            dense.matmul.shard(by_column)
        attention.wo.matmul.shard(by_row)
        forward.w2.matmul.shard(by_row)
    network.output.matmul.shard(by_column)
