"""GLM for multi-token cloze a second time, as functions of named parameters, in the publisher's operators.

It shares no code with the case's model and reads only its sizes. Names of parameters are those of the published
checkpoints. N sequences of T tokens, width D, H heads.

Source: FlagPerf 1b5a0303, training/benchmarks/glm/pytorch/model and training/nvidia/glm-pytorch/extern.
"""

import math
from typing import Any, Dict

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn import init
from torch.utils.checkpoint import checkpoint

Parameters = Dict[str, Tensor]


def shapes(sizes: Dict[str, Any]) -> Dict[str, Any]:
    """The shape of every parameter by name."""
    width, tables = sizes["dim"], (sizes["positions"], sizes["dim"])
    found: Dict[str, Any] = {"word_embeddings.weight": (sizes["vocab_size"], width)}
    found["transformer.position_embeddings.weight"] = found["transformer.block_position_embeddings.weight"] = tables
    linears = {
        "attention.query_key_value": (3 * width, width),
        "attention.dense": (width, width),
        "mlp.dense_h_to_4h": (4 * width, width),
        "mlp.dense_4h_to_h": (width, 4 * width),
    }
    norms = ["transformer.final_layernorm"]
    for number in range(sizes["layers"]):
        layer = "transformer.layers.%d." % number
        norms += [layer + "input_layernorm", layer + "post_attention_layernorm"]
        for name, shape in linears.items():
            found.update({layer + name + ".weight": shape, layer + name + ".bias": shape[:1]})
    for name in norms:
        found.update({name + ".weight": (width,), name + ".bias": (width,)})
    return found


def random_parameters(sizes: Dict[str, Any]) -> Parameters:
    """Normal matrices, narrower where they write into the residual stream; gains of one and biases of zero."""
    spread, made = sizes["initializer_range"], {}
    for name, shape in shapes(sizes).items():
        made[name] = torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        if len(shape) == 2:
            into_stream = name.endswith(("attention.dense.weight", "dense_4h_to_h.weight"))
            init.normal_(made[name], std=spread / math.sqrt(2 * sizes["layers"]) if into_stream else spread)
    return made


@torch.jit.script
def gelu(x: Tensor) -> Tensor:
    """GELU by tanh, compiled: what its graph keeps is part of what is measured."""
    half = 0.5 * x  # first: gradients are added in the order of the graph, which fp16 shows
    angle = 0.7978845608028654 * x * (1.0 + 0.044715 * x * x)
    return half * (1.0 + torch.tanh(angle))


class Model:
    """`scores` of a batch under a table of parameters; `training` turns dropout and recomputation on."""

    def __init__(self, sizes: Dict[str, Any], parameters: Parameters) -> None:
        self.sizes = sizes
        self.parameters = parameters
        self.training = True
        try:
            from apex.normalization.fused_layer_norm import fused_layer_norm_affine as fused
        except ImportError:
            fused = None
        self._fused = fused

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.parameters[name + ".weight"], self.parameters[name + ".bias"]
        if self._fused is not None and x.is_cuda:
            return self._fused(x, weight, bias, weight.shape, 1e-5)
        return F.layer_norm(x, weight.shape, weight, bias, 1e-5)

    def _drop(self, x: Tensor, which: str) -> Tensor:
        return F.dropout(x, self.sizes[which], self.training)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.parameters[name + ".weight"], self.parameters[name + ".bias"])

    def _output(self, x: Tensor, name: str) -> Tensor:
        """A product, and the bias after it."""
        product = F.linear(x, self.parameters[name + ".weight"])
        return product + self.parameters[name + ".bias"]

    def _attend(self, x: Tensor, visible: Tensor, layer: str) -> Tensor:
        heads, size = self.sizes["heads"], self.sizes["dim"] // self.sizes["heads"]
        parts = torch.split(self._linear(x, layer + "attention.query_key_value"), self.sizes["dim"], -1)
        query, key, value = [part.view(*part.shape[:2], heads, size).permute(0, 2, 1, 3) for part in parts]
        products = query @ (key.transpose(2, 3) / math.sqrt(size))
        hidden = -65504.0 * (1.0 - visible)
        shares = self._drop(torch.softmax(products * visible + hidden, -1), "attention_dropout")
        found = (shares @ value).permute(0, 2, 1, 3).contiguous()
        return self._drop(self._output(found.view(x.shape), layer + "attention.dense"), "dropout")

    def _layer(self, x: Tensor, visible: Tensor, layer: str) -> Tensor:
        x = x + self._attend(self._norm(x, layer + "input_layernorm"), visible, layer)
        wide = gelu(self._linear(self._norm(x, layer + "post_attention_layernorm"), layer + "mlp.dense_h_to_4h"))
        return x + self._drop(self._output(wide, layer + "mlp.dense_4h_to_h"), "dropout")

    def _visible(self, first_part: Tensor, x: Tensor) -> Tensor:
        """[N, 1, T, T]: 1 where a row sees a column, which is the first part and what is not behind the row."""
        causal = torch.tril(x.new_ones((1, x.size(1), x.size(1)))).expand(x.size(0), -1, -1)
        columns = torch.arange(x.size(1), dtype=first_part.dtype, device=x.device).view(1, -1)
        context = columns < first_part.view(-1, 1)
        return causal.masked_fill(context.unsqueeze(1).expand_as(causal), 1).unsqueeze(1)

    def _hidden(self, tokens: Tensor, places: Tensor, first_part: Tensor) -> Tensor:
        """[N, T, D] behind the last layer."""
        table = self.parameters
        x = F.embedding(tokens, table["word_embeddings.weight"])
        visible = self._visible(first_part, x)
        x = x + F.embedding(places[:, 0], table["transformer.position_embeddings.weight"])
        x = x + F.embedding(places[:, 1], table["transformer.block_position_embeddings.weight"])
        x = self._drop(x, "embedding_dropout")
        for number in range(self.sizes["layers"]):
            layer = "transformer.layers.%d." % number
            if self.sizes["recompute"] and self.training:
                x = checkpoint(self._layer, x, visible, layer, use_reentrant=True)
            else:
                x = self._layer(x, visible, layer)
        return self._norm(x, "transformer.final_layernorm")

    def scores(self, tokens: Tensor, places: Tensor, first_part: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        """[B, C] in fp32: for each choice the log-probability of the targets that count."""
        length = tokens.size(2)
        tokens, targets, counts = (x.reshape(-1, length) for x in (tokens, targets, counts))
        hidden = self._hidden(tokens, places.reshape(-1, 2, length), first_part.reshape(-1))
        table = F.log_softmax(F.linear(hidden, self.parameters["word_embeddings.weight"]), dim=-1)
        sequence = torch.arange(tokens.size(0), device=tokens.device)[:, None].expand_as(tokens)
        place = torch.arange(length, device=tokens.device)[None].expand_as(tokens)
        return (table[sequence, place, targets] * counts).sum(1).view(first_part.shape).float()
