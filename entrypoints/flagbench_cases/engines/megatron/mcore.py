"""The model and its process groups by Megatron-Core 0.16, which needs torch 2.6 and Python 3.10.

Modules are Megatron-Core's own (its `local` layer specification), since Transformer Engine and Apex are not in every
image; only the norm is torch's, marked for sequence parallelism.
"""

import warnings
from typing import Any, Callable, Tuple

import torch
import torch.distributed as dist
from torch.nn import functional as F

from flagbench_cases.contract import Context
from flagbench_cases.engines.megatron import cpu_shims
from flagbench_cases.engines.megatron.shape import Shape
from flagbench_cases.engines.process_group import ensure_group

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Apex and Transformer Engine are absent; pynvml has another name
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

RELEASE = "0.16"
# Of TransformerConfig, about its own default.
warnings.filterwarnings("ignore", "full scope is deprecated")


class Norm(torch.nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__()
        self.size, self.eps = (hidden_size,), eps
        device = torch.device("cpu") if config.use_cpu_initialization else torch.cuda.current_device()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        # Its gradient is a part on each rank, which Megatron-Core then sums.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., D]."""
        return F.rms_norm(hidden, self.size, self.weight, self.eps)


class ExpandedSelfAttention(SelfAttention):
    """Keys and values are repeated for all queries of their group before the rotary embedding, as in Megatron-LM of
    2023; current releases repeat them after it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # There is nothing left to repeat for it.
        self.core_attention.num_query_groups_per_partition = self.core_attention.num_attention_heads_per_partition

    def get_query_key_value_tensors(self, *arguments: Any, **options: Any) -> Any:
        query, key, value = super().get_query_key_value_tensors(*arguments, **options)
        times = query.shape[2] // key.shape[2]
        return query, key.repeat_interleave(times, dim=2), value.repeat_interleave(times, dim=2)


class PlainSwiGLU(MLP):
    """Current releases add an offset, here 0, to the linear half: one more pass over [T, B, ffn / tp]."""

    def forward(self, hidden: torch.Tensor, *_: Any, **__: Any) -> Tuple[torch.Tensor, Any]:
        both, _ = self.linear_fc1(hidden)
        gate, linear = torch.chunk(both, 2, dim=-1)
        return self.linear_fc2(F.silu(gate) * linear)  # type: ignore[no-any-return]


def add_residual(*_: Any) -> Callable[..., torch.Tensor]:
    """The sum without dropout and bias, as a new tensor; current releases overwrite the output."""
    return lambda output, residual, *_: residual + output[0]


class ModelPrecisionRotary(RotaryEmbedding):
    """Angles in the precision of the model, computed in every forward pass, as in Megatron-LM of 2023, which
    converted the frequencies with the model. In bf16, angles of position 100 are off by up to 0.1."""

    def forward(self, max_seq_len: int, offset: int = 0, **_: Any) -> torch.Tensor:
        frequencies = self.inv_freq
        positions = torch.arange(max_seq_len, dtype=torch.float32, device=frequencies.device) + offset
        angles = torch.einsum("i,j->ij", positions.to(frequencies.dtype), frequencies)
        return torch.cat((angles, angles), dim=-1)[:, None, None, :]


def start(context: Context) -> None:
    """Create Megatron-Core's process groups for the layout, and its generators for dropout."""
    device, layout = context.device, context.layout
    ensure_group(device.backend)
    if device.kind == "cpu":
        cpu_shims.install()
    parallel_state.initialize_model_parallel(
        layout.tp, layout.pp, order="tp-cp-ep-dp-pp", create_gloo_process_groups=False
    )
    tensor_parallel.model_parallel_cuda_manual_seed(context.config["seed"])


def build(context: Context, shape: Shape, dtype: torch.dtype, of_2023: bool = False) -> torch.nn.Module:
    """This rank's stage with uninitialised parameters: tokens [B, T] to logits [B, T, V / tp].

    `of_2023`: layers with the operators of Megatron-LM at that time: scores divided by the number of the layer and
    multiplied by it in fp32, keys repeated first, angles in the precision of the model, no offset in the SwiGLU,
    residuals added out of place. It is for inference: there is no dropout.
    """
    layout, at = context.layout, context.layout.coordinates(context.rank)
    config = TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.dim,
        ffn_hidden_size=shape.ffn,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        apply_query_key_layer_scaling=of_2023,
        masked_softmax_fusion=False,  # its kernels are Apex's
        gradient_accumulation_fusion=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        perform_initialization=False,
        use_cpu_initialization=context.device.kind == "cpu",
    )
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    if of_2023:
        layer.submodules.self_attention.module = ExpandedSelfAttention
        layer.submodules.self_attn_bda = layer.submodules.mlp_bda = add_residual
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about overlapping communication
        model = GPTModel(
            config=config,
            transformer_layer_spec=TransformerBlockSubmodules(
                layer_specs=[layer] * (shape.layers // layout.pp), layer_norm=Norm
            ),
            vocab_size=shape.padded_vocabulary(layout.tp),
            max_sequence_length=shape.positions,
            pre_process=at.pp == 0,
            post_process=at.pp == layout.pp - 1,
            parallel_output=True,
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
            rotary_base=shape.rope_theta,
        )
    if of_2023:
        model.rotary_pos_emb.__class__ = ModelPrecisionRotary
        model.rotary_pos_emb.inv_freq = model.rotary_pos_emb.inv_freq.to(dtype)
        for module in model.decoder.layers:
            module.mlp.__class__ = PlainSwiGLU
    return model


def sum_over_replicas(tensor: torch.Tensor) -> None:
    """Add the tensors of all replicas, in place; with one replica, a collective of one rank."""
    dist.all_reduce(tensor, group=parallel_state.get_data_parallel_group())


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each token, nats [B, T], from this rank's part of the logits, fp32 [B, T, V / tp], which it
    overwrites."""
    return tensor_parallel.vocab_parallel_cross_entropy(logits, labels)  # type: ignore[no-any-return]
