// matmul: C[.., m, n] = A[.., m, k] B[.., k, n], either operand with its last two axes swapped; leading axes
// broadcast.
#include <fmt/format.h>

#include <Eigen/Core>
#include <optional>

#include "ops/ops.h"
#include "ops/rules.h"
#include "ops/strided.h"

namespace nestgrad {

namespace {

struct Extents {
  std::int64_t m, n, ka, kb;
};

bool flag_a(const Attrs& a) { return a.ints[0] != 0; }
bool flag_b(const Attrs& a) { return a.ints[1] != 0; }

Extents extents(const Call& c) {
  const Shape& a = c.in[0].shape;
  const Shape& b = c.in[1].shape;
  const std::int64_t a0 = a[a.size() - 2], a1 = a[a.size() - 1], b0 = b[b.size() - 2], b1 = b[b.size() - 1];
  return {flag_a(c.attrs) ? a1 : a0, flag_b(c.attrs) ? b0 : b1, flag_a(c.attrs) ? a0 : a1,
          flag_b(c.attrs) ? b1 : b0};
}

Shape batch_of(const Shape& s) { return {s.begin(), s.end() - 2}; }

Spec infer_matmul(const Call& c) {
  if (c.in[0].dtype != c.in[1].dtype || !is_float(c.in[0].dtype))
    c.dtype_error("needs two operands of one floating type; cast() them");
  if (c.in[0].rank() < 2 || c.in[1].rank() < 2)
    c.shape_error("needs at least two axes each; reshape a vector to [1,n] or [n,1]");
  const Extents e = extents(c);
  if (e.ka != e.kb)
    c.shape_error(fmt::format("inner dimensions differ ({} against {}); need a.{} == b.{}", e.ka, e.kb,
                              flag_a(c.attrs) ? "rows" : "cols", flag_b(c.attrs) ? "cols" : "rows"));
  Shape shape = broadcast_shapes(c, batch_of(c.in[0].shape), batch_of(c.in[1].shape));
  shape.insert(shape.end(), {e.m, e.n});
  return {c.in[0].dtype, std::move(shape)};
}

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Eigen packs blocks of both operands before it multiplies them. Blocks too large for its stack limit would
// be allocated at every call; they live in a buffer of the thread instead, which grows when a kernel is made,
// not when it runs.
std::byte* packing_space(std::size_t bytes) {
  thread_local Array space;
  if (!space.defined() || space.bytes() < bytes)
    space = Array(DType::i32, {static_cast<std::int64_t>(bytes / 4 + 1)});
  return space.data();
}

// Eigen's own choice of block sizes. A row-major product is computed as the transposed column-major one: the
// columns of the result play the rows.
template <class T>
class Blocking : public Eigen::internal::level3_blocking<T, T> {
 public:
  explicit Blocking(Extents e) {
    this->m_mc = e.n, this->m_nc = e.m, this->m_kc = e.ka;
    Eigen::internal::computeProductBlockingSizes<T, T, 1>(this->m_kc, this->m_mc, this->m_nc,
                                                          Eigen::Index{1});
  }
  void make_space() {
    const std::size_t a = (bytes(this->m_mc) + 63) / 64 * 64;
    std::byte* space = packing_space(a + bytes(this->m_nc));
    this->m_blockA = reinterpret_cast<T*>(space);
    this->m_blockB = reinterpret_cast<T*>(space + a);
  }

 private:
  std::size_t bytes(Eigen::Index extent) const { return uz(extent * this->m_kc) * sizeof(T); }
};

// One matrix product of known extents.
template <class T>
class Product {
 public:
  // A vector is the same bytes either way; as a contiguous row Eigen reads it in place.
  Product(bool ta, bool tb, Extents e) : ta_(ta && e.m != 1), tb_(tb || e.n == 1), e_(e) {
    if (std::min(e.m, e.n) < 2 || uz(std::max(e.m, e.n) * e.ka) * sizeof(T) <= EIGEN_STACK_ALLOCATION_LIMIT)
      return;
    blocking_.emplace(e).make_space();
  }

  void operator()(const T* a, const T* b, T* out) const {
    if (blocking_)
      return ta_ ? (tb_ ? packed<true, true>(a, b, out) : packed<true, false>(a, b, out))
                 : (tb_ ? packed<false, true>(a, b, out) : packed<false, false>(a, b, out));
    if (e_.m + e_.n + e_.ka < kSmall)
      return ta_ ? (tb_ ? small<true, true>(a, b, out) : small<true, false>(a, b, out))
                 : (tb_ ? small<false, true>(a, b, out) : small<false, false>(a, b, out));
    using In = Eigen::Map<const Matrix<T>>;
    Eigen::Map<Matrix<T>> c(out, e_.m, e_.n);
    const In x(a, ta_ ? e_.ka : e_.m, ta_ ? e_.m : e_.ka), y(b, tb_ ? e_.n : e_.ka, tb_ ? e_.ka : e_.n);
    if (ta_ && tb_) c.noalias() = x.transpose() * y.transpose();
    else if (ta_) c.noalias() = x.transpose() * y;
    else if (tb_) c.noalias() = x * y.transpose();
    else c.noalias() = x * y;
  }

 private:
  template <bool TA, bool TB>
  void packed(const T* a, const T* b, T* out) const {
    using Gemm = Eigen::internal::general_matrix_matrix_product<
        Eigen::Index, T, TA ? Eigen::ColMajor : Eigen::RowMajor, false, T,
        TB ? Eigen::ColMajor : Eigen::RowMajor, false, Eigen::RowMajor, 1>;
    Blocking<T> blocking = *blocking_;
    blocking.make_space();  // of the thread that runs
    std::fill_n(out, e_.m * e_.n, T(0));
    Gemm::run(e_.m, e_.n, e_.ka, a, TA ? e_.m : e_.ka, b, TB ? e_.ka : e_.n, out, 1, e_.n, T(1), blocking);
  }

  // Eigen multiplies the smallest matrices coefficient by coefficient, in an order that depends on where in
  // memory the result lies; one result must have one value wherever the plan puts it.
  static constexpr std::int64_t kSmall = EIGEN_GEMM_TO_COEFFBASED_THRESHOLD;

  template <bool TA, bool TB>
  void small(const T* a, const T* b, T* out) const {
    const auto [m, n, k, _] = e_;
    for (std::int64_t i = 0; i < m; ++i, out += n) {
      std::fill_n(out, n, T(0));
      for (std::int64_t p = 0; p < k; ++p) {
        const T x = TA ? a[p * m + i] : a[i * k + p];
        for (std::int64_t j = 0; j < n; ++j) out[j] += x * (TB ? b[j * k + p] : b[p * n + j]);
      }
    }
  }

  bool ta_, tb_;
  Extents e_;
  std::optional<Blocking<T>> blocking_;  // when the packed blocks do not fit on the stack
};

// Element offsets of each batch member of an operand under broadcasting.
std::vector<std::int64_t> batch_offsets(const Shape& batch, const Shape& own, std::int64_t matrix) {
  std::vector<std::int64_t> offsets{0};
  const Shape strides = strides_of(own);
  for (std::size_t d = 0; d < batch.size(); ++d) {
    const std::size_t skip = batch.size() - own.size();
    const std::int64_t stride = d < skip || own[d - skip] == 1 ? 0 : strides[d - skip] * matrix;
    std::vector<std::int64_t> next;
    for (std::int64_t base : offsets)
      for (std::int64_t i = 0; i < batch[d]; ++i) next.push_back(base + i * stride);
    offsets = std::move(next);
  }
  return offsets;
}

template <class T>
Kernel typed_matmul(const Call& c) {
  const bool ta = flag_a(c.attrs), tb = flag_b(c.attrs);
  Extents e = extents(c);
  const Shape batch = batch_of(c.out.shape);
  std::int64_t count = numel(batch);
  // Rows of all batch members against one right-hand side are one product.
  if (!ta && numel(batch_of(c.in[1].shape)) == 1 && numel(batch_of(c.in[0].shape)) == count) {
    e.m *= count;
    return [product = Product<T>(ta, tb, e)](const std::byte* const* in, std::byte* out) {
      product(reinterpret_cast<const T*>(in[0]), reinterpret_cast<const T*>(in[1]),
              reinterpret_cast<T*>(out));
    };
  }
  return [=, product = Product<T>(ta, tb, e), ao = batch_offsets(batch, batch_of(c.in[0].shape), e.m * e.ka),
          bo = batch_offsets(batch, batch_of(c.in[1].shape), e.n * e.ka)](const std::byte* const* in,
                                                                          std::byte* out) {
    const T* a = reinterpret_cast<const T*>(in[0]);
    const T* b = reinterpret_cast<const T*>(in[1]);
    T* y = reinterpret_cast<T*>(out);
    for (std::int64_t i = 0; i < count; ++i) product(a + ao[uz(i)], b + bo[uz(i)], y + i * e.m * e.n);
  };
}

// dA = dC B' and dB = A' dC, written for each pair of flags. Broadcast axes are summed by grad.
Tensor matmul_vjp(const VjpCall& c) {
  const bool ta = flag_a(c.attrs), tb = flag_b(c.attrs);
  const Tensor a = c.in[0], b = c.in[1];
  if (c.input == 0) return ta ? matmul(b, c.ct, {tb, true}) : matmul(c.ct, b, {false, !tb});
  return tb ? matmul(c.ct, a, {true, ta}) : matmul(a, c.ct, {!ta, false});
}

// Batch axes go where broadcasting puts them; rows of a and columns of b stay; contracted axes go nowhere.
int matmul_axes(const Call& c, int input, int axis) {
  const Spec& in = c.in[uz(input)];
  const bool swapped = input == 0 ? flag_a(c.attrs) : flag_b(c.attrs);
  const int from_end = in.rank() - axis;
  if (from_end > 2) {
    const int to = axis + c.out.rank() - in.rank();
    return in.shape[uz(axis)] == c.out.shape[uz(to)] ? to : -1;
  }
  const bool is_row = (from_end == 2) != swapped;
  if (input == 0) return is_row ? c.out.rank() - 2 : -1;
  return is_row ? -1 : c.out.rank() - 1;
}

// A transposed operand is read through the flag instead of being copied.
Tensor absorb_transpose(Tensor t) {
  Transpose flags{flag_a(node_of(t).attrs), flag_b(node_of(t).attrs)};
  const Tensor a = transposed_input(input_of(t, 0)), b = transposed_input(input_of(t, 1));
  if (!a.defined() && !b.defined()) return {};
  flags.a = flags.a != a.defined();
  flags.b = flags.b != b.defined();
  return matmul(a.defined() ? a : input_of(t, 0), b.defined() ? b : input_of(t, 1), flags);
}

}  // namespace

const Op& matmul_op = register_op(
    {.name = "matmul",
     .doc = "Matrix product over the last two axes, C = op(A) op(B).",
     .infer = infer_matmul,
     .vjp = matmul_vjp,
     .cpu =
         [](const Call& c) {
           return c.out.dtype == DType::f32 ? typed_matmul<float>(c) : typed_matmul<double>(c);
         },
     .linear_in = always_linear,
     .axes = matmul_axes,
     .cost =
         [](const Call& c) {
           return Cost{2.0 * static_cast<double>(c.out.size() * extents(c).ka), elementwise_cost(c).bytes};
         },
     .simplify = absorb_transpose,
     .describe = [](const Attrs& a) { return std::string(flag_a(a) ? "a'" : "") + (flag_b(a) ? "b'" : ""); },
     .samples = []() -> std::vector<Sample> {
       return {{.inputs = {{{3, 4}}, {{4, 2}}}, .attrs = {.ints = {0, 0}}},
               {.inputs = {{{4, 3}}, {{4, 2}}}, .attrs = {.ints = {1, 0}}},
               {.inputs = {{{2, 3, 4}}, {{2, 2, 4}}}, .attrs = {.ints = {0, 1}}},
               {.inputs = {{{2, 1, 4, 3}}, {{3, 2, 4}}}, .attrs = {.ints = {1, 1}}},
               {.inputs = {{{2, 3, 4}}, {{4, 2}}}, .attrs = {.ints = {0, 0}}},
               {.inputs = {{{4, 4}}, {{2, 4, 4}}}, .attrs = {.ints = {0, 0}}},
               {.inputs = {{{16, 32}}, {{64, 8}}},
                .attrs = {.ints = {0, 0}},
                .error = "[matmul] inner dimensions differ (32 against 64); need a.cols == b.rows"},
               {.inputs = {{{3}}, {{3, 2}}}, .attrs = {.ints = {0, 0}}, .error = "reshape a vector"}};
     },
     .broadcasts = true});

Tensor matmul(Operand a, Operand b, Transpose t) {
  return emit(matmul_op, {a.tensor, b.tensor}, {.ints = {t.a, t.b}}, a.loc);
}

}  // namespace nestgrad
