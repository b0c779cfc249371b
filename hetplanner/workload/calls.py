"""The aten calls that a program may hold: what the runtime performs, and nothing else; names only, no torch.

None of them writes into a tensor that it is given (batch norm's running statistics aside), reads a file or a device,
or hands out uninitialised memory.
"""


def _overloads(text: str) -> frozenset[str]:
    """`add:Tensor,Scalar relu` -> add.Tensor, add.Scalar, relu.default."""
    found = set()
    for word in text.split():
        name, _, overloads = word.partition(":")
        found |= {f"{name}.{overload}" for overload in (overloads or "default").split(",")}
    return frozenset(found)


ELEMENTWISE_CALLS = _overloads("""
    abs absolute acos acosh add:Tensor,Scalar addcdiv addcmul angle arctan2 asin asinh atan atan2 atanh
    bitwise_and:Tensor,Scalar bitwise_not bitwise_or:Tensor,Scalar bitwise_xor:Tensor,Scalar
    bitwise_left_shift:Tensor,Tensor_Scalar bitwise_right_shift:Tensor,Tensor_Scalar __and__:Tensor,Scalar
    __or__:Tensor,Scalar __xor__:Tensor,Scalar ceil celu clamp:default,Tensor clamp_max:default,Tensor
    clamp_min:default,Tensor clip:default,Tensor clone copysign:Tensor,Scalar cos cosh deg2rad
    div:Tensor,Scalar,Tensor_mode,Scalar_mode divide:Tensor,Scalar,Tensor_mode,Scalar_mode elu eq:Tensor,Scalar erf
    erfc erfinv exp exp2 expm1 float_power:Tensor_Scalar,Tensor_Tensor,Scalar floor floor_divide:default,Scalar fmax
    fmin fmod:Tensor,Scalar frac ge:Tensor,Scalar gelu greater:Tensor,Scalar greater_equal:Tensor,Scalar
    gt:Tensor,Scalar hardshrink hardsigmoid hardswish hardtanh heaviside hypot isclose isfinite isinf isnan isneginf
    isposinf ldexp:Tensor le:Tensor,Scalar leaky_relu lerp:Tensor,Scalar less:Tensor,Scalar less_equal:Tensor,Scalar
    lgamma log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit lt:Tensor,Scalar maximum minimum mish mul:Tensor,Scalar multiply:Tensor,Scalar nan_to_num ne:Tensor,Scalar
    neg negative not_equal:Tensor,Scalar positive pow:Tensor_Tensor,Tensor_Scalar,Scalar prelu rad2deg reciprocal
    relu relu6 remainder:Tensor,Scalar,Scalar_Tensor round:default,decimals rsqrt rsub:Tensor,Scalar selu sgn
    sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square sub:Tensor,Scalar subtract:Tensor,Scalar
    tan tanh threshold true_divide:Tensor,Scalar trunc where:self,default,Scalar,ScalarOther,ScalarSelf
    xlogy:Tensor,Scalar_Other,Scalar_Self special_expit special_erf special_expm1 special_log1p special_entr
    special_gammaln special_logit special_xlogy:default,other_scalar,self_scalar
""")

_SHAPES = _overloads("""
    adjoint alias atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat channel_shuffle chunk
    column_stack concat concatenate constant_pad_nd contiguous detach diag diag_embed diagonal diagonal_scatter
    dsplit:int,array dstack expand expand_as flatten:using_ints flip fliplr flipud hsplit:int,array hstack im2col
    col2im index:Tensor index_add index_fill:int_Scalar,int_Tensor index_put index_select gather lift_fresh_copy mT
    mH masked_fill:Scalar,Tensor masked_scatter meshgrid:default,indexing moveaxis:int,intlist movedim:int,intlist
    narrow numpy_T pad permute pixel_shuffle pixel_unshuffle ravel reflection_pad1d reflection_pad2d
    reflection_pad3d repeat repeat_interleave:self_int replication_pad1d replication_pad2d replication_pad3d reshape
    reshape_as roll rot90 scatter:src,value,reduce,value_reduce scatter_add scatter_reduce:two select:int
    select_scatter slice:Tensor slice_scatter split:Tensor,sizes split_with_sizes squeeze:default,dim,dims stack
    swapaxes swapdims t take take_along_dim tensor_split:sections,indices tile transpose:int tril triu unbind:int
    unflatten:int unfold unsafe_chunk unsafe_split:Tensor unsafe_split_with_sizes unsqueeze view:default view_as
    view_as_complex view_as_real vsplit:int,array vstack _unsafe_view to:dtype,dtype_layout,other _to_copy type_as
""")

_REDUCTIONS = _overloads("""
    all:default,dim,dims amax amin aminmax any:default,dim,dims argmax argmin argsort:default,stable
    bucketize:Tensor count_nonzero:default,dim_IntList cummax cummin cumprod cumsum diff dist histc kthvalue
    linalg_norm linalg_vector_norm logcumsumexp logsumexp max:default,dim,other mean:default,dim median:default,dim
    min:default,dim,other mode msort nanmean nansum norm:Scalar,ScalarOpt_dim prod:default,dim_int
    quantile:default,scalar searchsorted:Tensor softmax:int _softmax log_softmax:int _log_softmax _safe_softmax
    sort:default,stable std:default,dim,correction std_mean:default,dim,correction sum:default,dim_IntList
    sum_to_size topk trace trapezoid:x,dx var:default,dim,correction var_mean:default,dim,correction
""")

_PRODUCTS = _overloads("""
    addbmm addmm addmv addr baddbmm bilinear bmm cdist chain_matmul cosine_similarity cross dot einsum ger inner
    kron linalg_cross linalg_matmul linalg_multi_dot linalg_vecdot linear matmul matrix_power mm mv outer
    pairwise_distance tensordot vdot linalg_cholesky linalg_det linalg_inv linalg_matrix_norm linalg_qr
    linalg_slogdet linalg_solve linalg_solve_triangular matrix_exp linalg_matrix_exp cholesky_solve det logdet
    inverse complex polar real imag conj resolve_conj resolve_neg fft_fft fft_ifft fft_rfft fft_irfft fft_fft2
    fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_fftshift fft_ifftshift fft_hfft
    fft_ihfft stft:default,center istft
""")

_LAYERS = _overloads("""
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d affine_grid_generator avg_pool1d avg_pool2d avg_pool3d conv1d:default,padding
    conv2d:default,padding conv3d:default,padding conv_transpose1d conv_transpose2d:input conv_transpose3d:input
    convolution embedding embedding_bag:default,padding_idx glu grid_sampler grid_sampler_2d grid_sampler_3d
    group_norm layer_norm rms_norm native_layer_norm native_group_norm _weight_norm norm_except_dim max_pool1d
    max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices one_hot gru_cell
    lstm_cell rnn_relu_cell rnn_tanh_cell upsample_bicubic2d:default,vec upsample_bilinear2d:default,vec
    upsample_linear1d:default,vec upsample_nearest1d:default,vec upsample_nearest2d:default,vec
    upsample_nearest3d:default,vec upsample_trilinear3d:default,vec _upsample_bilinear2d_aa:default,vec
    _upsample_bicubic2d_aa:default,vec _upsample_nearest_exact1d:default,vec _upsample_nearest_exact2d:default,vec
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss
    ctc_loss:IntList,Tensor hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d nll_loss_nd poisson_nll_loss smooth_l1_loss
    soft_margin_loss triplet_margin_loss
""")

_CREATED = _overloads("""
    arange:default,start,start_step eye:default,m fill:Scalar,Tensor full full_like linspace logspace new_full
    new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zeros zeros_like bartlett_window
    blackman_window hamming_window hann_window
""")

RANDOM_CALLS = _overloads("""
    alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout rrelu scaled_dot_product_attention
    lstm:input gru:input rnn_tanh:input rnn_relu:input bernoulli:default,p
    normal:Tensor_Tensor,Tensor_float,float_Tensor multinomial poisson rand rand_like randint:default,low
    randint_like:default,low_dtype randn randn_like randperm
""")
"""Calls that draw (some only if their arguments ask for it)."""

EVALUATED_WITH: dict[str, tuple[str, bool | float]] = {
    "alpha_dropout.default": ("train", False),
    "batch_norm.default": ("training", False),
    "dropout.default": ("train", False),
    "feature_alpha_dropout.default": ("train", False),
    "feature_dropout.default": ("train", False),
    "gru.input": ("train", False),
    "instance_norm.default": ("use_input_stats", False),
    "lstm.input": ("train", False),
    "native_dropout.default": ("train", False),
    "rnn_relu.input": ("train", False),
    "rnn_tanh.input": ("train", False),
    "rrelu.default": ("training", False),
    "scaled_dot_product_attention.default": ("dropout_p", 0.0),
}
"""What training and evaluation do otherwise: the argument, and its value in evaluation."""

CASTING_CALLS = _overloads("linear conv1d conv2d conv3d convolution matmul mm bmm addmm baddbmm")
"""Calls that autocast computes in its dtype on every device, with weights among their arguments."""

STATISTICS_CALLS = _overloads("batch_norm instance_norm")
"""Calls that may move running statistics."""

GETITEM = "getitem"
"""Takes one of several outputs: (node, index)."""

ALLOWED_CALLS = (
    ELEMENTWISE_CALLS
    | _SHAPES
    | _REDUCTIONS
    | _PRODUCTS
    | _LAYERS
    | _CREATED
    | RANDOM_CALLS
    | STATISTICS_CALLS
    | {GETITEM}
)
