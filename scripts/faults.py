"""The faults that scripts/mutants.py plants: a table to read and to add to.

A fault is (name, anchor, planted), and its own tests where they are not its group's. The anchor is text of
the file, found exactly once (any white space matches any other); the piece between « and » is what it replaces:

    planted is an expression   the piece is an expression, of which this one takes the place
    planted is None            the piece is a statement, which is left out
    planted has FAULT in it    the piece becomes this text; FAULT is true where the fault is planted

Faults of the op table (OP_TABLE below) need no text: they are planted where rows register themselves.
"""

import fnmatch
import functools
import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"


def files(*patterns):
    """The tests of these files; each pattern must be the beginning of a file's name."""
    for p in patterns:
        if not any(TESTS.glob(p + "*")):
            raise SystemExit(f"faults.py: no file of tests begins with {p}")
    return "--source-file=" + ",".join(f"*tests/{p}*" for p in patterns)


@functools.cache
def test_names():
    names = []
    for file in TESTS.rglob("*_test.cpp"):
        for name in re.findall(r'TEST_CASE(?:_TEMPLATE)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', file.read_text()):
            names.append("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', name)))
    return names


def require_known(patterns):
    for p in patterns:
        if not fnmatch.filter(test_names(), p):
            raise SystemExit(f"faults.py: no test has a name like '{p}'")


def cases(*patterns):
    require_known(patterns)
    return "--test-case=" + ",".join(p.replace(",", "\\,") for p in patterns)


def without(*patterns):
    require_known(patterns)
    return "--test-case-exclude=" + ",".join(patterns)


# Which tests should notice, those that do most often first: each is one run of nestgrad_tests, to its first
# failure. REST is the rest of the tests, for a fault that none of the likely ones notices.
SLOW = ("elementwise functions of one float*", "elementwise functions are true to two units*",
        "whatever happens to one byte*", "A gradient in each step of a long loop*",
        "a language model with layers of any causal*", "a run knows nothing of the run before it*")
REST = ("--source-file-exclude=*tests/cuda/*", without(*SLOW))
# Random programs and learners (tests/fuzz/), after the tests that are written.
CAMPAIGNS = ("programs_fuzz", "learners_fuzz")
PROGRAMS, LEARNERS = ("programs_fuzz", "--cases", "1500"), ("learners_fuzz", "--cases", "800")
RULES = (files("ops/sweep_test", "ops/elementwise_test", "ops/structured_test", "ops/products_test", "ops/solve_test"),
         (files("ops/"), without(*SLOW)))
DERIVATIVES = ((files("autograd/grad", "autograd/scan_test"), without(*SLOW)),
               (files("autograd/"), without(*SLOW)), PROGRAMS)
BODIES = (files("engine/compiled_body"),)
PLANS = ((files("engine/flow", "engine/donate", "engine/carries_in_place", "engine/plan", "engine/fusion", "autograd/scan_checkpoint", "engine/slicing"),
          without(*SLOW)),
         files("engine/stepped", "engine/function", "engine/rematerialize", "engine/recompute_carries", "engine/donate", "autograd/custom",
               "autograd/scan_test", "ops/simplify"),
         cases("checkpointing through time*"), PROGRAMS)
THREADS = (cases("a run knows nothing of the run before it*"),)
SIMPLIFY = (files("ops/simplify", "ops/sweep_test"),)
FORMS = (cases("both forms are the inner loop done by hand*", "losses before and after*",
               "parallel = dual = primal*", "WY = dual = primal*", "one step a chunk: every choice*",
               "chunk-parallel = dual*"),
         files("ttt/inner_loop", "ttt/forms", "ttt/parallel_forms", "ttt/refusals"),
         files("ttt/laws", "ttt/policies", "ttt/lact_ladder", "ttt/meta_gradient_policy", "ttt/optimizers"), files("ttt/nesting", "look/numbers"), LEARNERS)
STEPS = (files("ttt/optimizers"), files("ttt/laws", "ttt/policies", "ttt/lact_ladder"), files("ttt/nesting", "golden_check/"),
         LEARNERS)
DECODING = (files("ttt/step_test", "models/decoder"),
            cases("token by token*", "reading token by token*", "Nadaraya*token by token*"), LEARNERS)
TRAINING = (files("models/optimizer", "models/training", "models/trainer", "models/data"), files("models/"))

PROCESSES = (files("engine/processes", "ops/collectives", "models/sharded"), TRAINING[0])
SLICES = (files("models/sliced", "engine/processes"),)

VISION = (files("models/vision", "models/view_synthesis", "models/diffusion"), files("ttt/vision"))
INSPECTION = (files("look/inspected_block", "look/inspection_test"),)
IMAGES = (files("models/images"), files("engine/io", "engine/images", "look/images"))
STATISTICS = (files("reproduce/statistics"),)
REPRODUCE = (files("reproduce/experiment"), files("reproduce/"))
REFERENCE = (files("ttt/reference", "ttt/verification"),)
PUBLISHED = (files("models/published"),)
PROGRAM_FOLDERS = (files("programs/out_folder"),)

# Tests of the emulator itself want a process of their own, in which no backend has allocated anything.
CUDA = (files("cuda/device", "cuda/scan_kernel", "cuda/emulator_backend", "cuda/emulator_kernels", "cuda/emulator_passes", "cuda/processes"),)

# (group, file, tests, faults)
FAULTS = [
    ("cuda", "cuda/strided.h", CUDA, [
        ("walk-of-one-more-axis", "for (int d = rank; «d-- > 1»;)", "d-- > 2"),
        ("large-index-as-small", "if («index >> 31 != 0») return at_large(index);", "index >> 33 != 0"),
        ("divisor-rounded-down", "static_cast<std::uint64_t>(by) + «1»);", "0"),
    ]),
    ("cuda", "cuda/reduce.cu", CUDA, [
        ("part-begins-at-the-front", "reduce_terms<R>(reduction, from, «begin + threadIdx.x», end, blockDim.x)", "threadIdx.x"),
        ("last-part-too-long", "const std::int64_t end = begin + («rest < parts.length ? rest : parts.length»); const T* from",
         "parts.length"),
        ("lane-without-a-part-adds-one", "if (lane >= parts) «total = R<T>(total.value());»", None),
        ("columns-share-the-first-part", "reduction.kept.at(output), «begin + row», end, kRows)", "row"),
    ]),
    ("cuda", "cuda/cluster.cuh", CUDA, [
        ("wide-where-it-is-not-aligned", "bool wide = «count % kWide == 0 && reinterpret_cast<std::uintptr_t>(y) % sizeof(Wide<T>) == 0»;",
         "count % kWide == 0"),
        ("wide-over-two-rows", "return row == 1 || «row % Wide<T>::kCount == 0»;", "true"),
    ]),
    ("cuda", "cuda/moves.h", CUDA, [
        ("unit-cuts-a-row", "move.to.stride[last] != 1 || «move.from.size[last] % n != 0» ||", "false"),
        ("unit-of-odd-stride", "if («walk->stride[d] % n != 0») return std::nullopt;", "false"),
        ("unit-from-odd-offset", "«move.source_offset % n != 0» || move.target_offset", "false"),
    ]),
    ("cuda", "cuda/gather.cu", CUDA, [
        ("list-in-any-order", "«before += __shfl_sync(kFullWarp, mine, other) < mine;»", "before += FAULT ? other < lane : __shfl_sync(kFullWarp, mine, other) < mine;"),
        ("long-list-cut-off", "if (begins && «listed <= static_cast<int>(kWarp)»)", "listed >= 0"),
        ("counts-not-zeroed", "«on.zero(reinterpret_cast<std::byte*>(counts), static_cast<std::size_t>(size.rows) * sizeof(std::int32_t));»", None),
    ]),
    ("cuda", "cuda/heap.cpp", CUDA, [
        ("pool-gives-all-back", "«NESTGRAD_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));»", None),
        ("kept-memory-not-free", "out.free += «static_cast<std::size_t>(reserved - used)»;", "0"),
        ("kept-of-another-size", "const auto found = «kept_.find(bytes)»; found", "kept_.lower_bound(bytes)"),
        ("kept-not-given-back", "cudaErrorMemoryAllocation && «kept_bytes_ > 0») {", "false"),
    ]),
    ("cuda", "cuda/loop_time.cpp", CUDA, [
        ("slices-all-at-once", "«out.in_kernel *= rounds;»", None),
        ("products-cost-nothing", "«cost.flops / kProductFlops»", "0.0"),
    ]),
    ("cuda", "cuda/scan.cu", CUDA, [
        ("window-decides-the-kernel", "if (s.window) «most += static_cast<std::size_t>(s.part.bytes);»", None),
        ("terms-of-one-slice", "«total = total + terms[s * n + i];»", None),
    ]),
    ("cuda", "cuda/scan_source.cpp", CUDA, [
        ("four-at-once-anywhere", "bool all = «is_whole(place) && row * element() % kWhole == 0»;", "is_whole(place)"),
        ("turned-matrix-overwritten", "const bool waits = «p.count > 1 && (scratch.bytes > 0 || !before.empty())»;", "false"),
        ("parts-over-the-turned", "parts.at += «ceil_of(k * b_row * element(), kWhole) * kWhole»;", "std::int64_t{0}"),
        ("turned-matrix-of-another", "if (!stays || «turned != turned_»)", "turned_.empty()"),
        ("scratch-for-nothing", "scratch_bytes_ = std::max(scratch_bytes_, «scratch.at + scratch.bytes - scratch_at_»);", "std::int64_t{0}"),
    ]),
    ("cuda", "cuda/cluster_source.cpp", CUDA, [
        ("counter-runs-over", "const bool large = «2 * std::max(elements, out.threads)» >=", "std::max(elements, out.threads)"),
        ("last-columns-of-a-row", "const bool ragged = «row % kLanes != 0»;", "false"),
        ("half-a-warp-without-a-row", "while (out < kMostRowsOfWarp && «layout_.rows() % (2 * out) == 0» &&", "true"),
        ("four-over-two-rows", "«layout_.row() % kTogether != 0») return false; return true;", "false"),
        ("four-where-one-is-left", "if («n % kTogether != 0» ||", "false"),
        ("threads-for-a-fourth", "out.out_whole ? elements / kTogether : «elements»;", "elements / kTogether"),
    ]),
    ("cuda", "cuda/scan_block.cuh", CUDA, [
        ("only-the-first-part-of-a-sum", "part < «p.parts»; ++part", "1"),
    ]),
    ("cuda", "cuda/backend.cpp", CUDA, [
        ("copies-wait-behind-exchanges", "if («!exchanges_in_queue().empty()») wait(); if (bytes > 0)", "false"),
    ]),
    ("cuda", "cuda/nccl.cpp", CUDA, [
        ("abort-waits-for-recordings", "returns_within(«std::chrono::seconds(1)», [made", "std::chrono::hours(1)"),
    ]),
    ("cuda", "cuda/matmul.cpp", CUDA, [
        ("longer-operand-not-copied", "const bool shared = b == a && «size_b <= size_a»;", "true"),
        ("along-the-last-axis", "static_cast<int>( «std::max_element(batch.out.size, batch.out.size + batch.out.rank) - batch.out.size»);", "batch.out.rank - 1"),
    ]),
    ("cuda", "cuda/moves.h", CUDA, [
        ("without-the-last-tile", "down = «(out.rows + TiledMove::kTile - 1) / TiledMove::kTile»,", "out.rows / TiledMove::kTile"),
        ("rows-of-another-axis", "while (row < last && «move.from.stride[row] != 1») ++row;", "row < last - 1"),
    ]),
    ("cuda", "cuda/single_steps.cpp", CUDA, [
        ("every-scan-is-of-one-step", "return scan && «scan->steps == 1» && !scan->recomputes;", "scan->steps >= 1"),
        ("made-again-by-nobody", "is_recomputed ? «new_region()» : 0);", "0"),
        ("region-of-the-scan-forgotten", "«context().emit.region = region_of(n.region);»", None),
    ]),
    ("cuda", "cuda/after_steps.cpp", CUDA, [
        ("stacks-that-nobody-keeps", "if («can_be_made(old_.node(id), *plan)») scans_.emplace", "true"),
        ("axes-without-the-steps", "for (std::int64_t& axis : axes) «++axis»;", "axis"),
        ("ranks-that-do-not-fit", "v.of_steps && «n.op->element_loop != nullptr» ? with_rank", "n.spec.rank() < 0"),
        ("same-at-all-steps", "«what < body.carries + body.xs»}; std::vector<Value> in;", "what < body.carries"),
        ("what-is-computed-again-is-read", "if (id < body.carries + body.xs && «!is_stored(scan.inputs[uz(id)])») return false;", "false"),
    ]),
    ("cuda", "cuda/permute_late.cpp", CUDA, [
        ("order-not-turned-round", "return after(source.order, «inverse_order(order)»);", "order"),
        ("padded-behind", "out.order[i + uz(more)] = late_[uz(id)]->order[i] + «more»;", "0"),
        ("sums-over-old-axes", "axes.push_back(«late.order[uz(axis)]»);", "static_cast<int>(axis)"),
        ("one-member-for-all", "if («shape[uz(rank - 3)] != members») return false; shape[uz(rank - 3)] = parts;", "false"),
        ("products-of-anything", "if («!turned.a» || turned.b || parts == members) return false;", "false"),
        ("read-by-others-too", "old_.node(in).op != &matmul_op || «readers_[uz(in)].size() != 1») return false; const Tensor product", "false"),
        ("more-permutes-than-before", "if («bytes > least» || (bytes == least", "false"),
        ("parts-of-unequal-length", "do ++parts; while («members % parts != 0»);", "false"),
        ("steps-stay-in-front", "«std::rotate(order.begin(), order.begin() + 1, order.end() - 2);»", None),
    ]),
    ("cuda", "cuda/row_sums.cpp", CUDA, [
        ("rows-of-the-first-axis", "ReduceAttrs{{«axes.back()»}}", "axes.front()"),
        ("rows-of-anything", "return «in.op->element_loop != nullptr» && axes.size() > 1", "true"),
    ]),
    ("cuda", "cuda/reduce.cu", CUDA, [
        ("few-terms-without-the-last", "reduction.kept.at(output), 0, «reduction.terms», 1).value();", "reduction.terms - 1"),
    ]),
    ("cuda", "cuda/matmul.cpp", CUDA, [
        ("rows-of-two-operands", "!p.ta && «batch.b.stride[batch.out.rank - 1] == 0») {", "true"),
        ("rows-of-turned-matrices", "while (batch.out.rank > 0 && «!p.ta» &&", "true"),
    ]),
    ("cuda", "cuda/move.cu", CUDA, [
        ("tile-read-by-columns", "«tile[beside * (kTile + 1) + first + k * kAtOnce]»; }", "tile[(first + k * kAtOnce) * (kTile + 1) + beside]"),
    ]),
    ("cuda", "cuda/loop_time.cpp", CUDA, [
        ("results-need-no-room", "std::size_t bytes = «is_read[uz(id)] ? n.spec.bytes() : 0»;", "std::size_t{0}"),
    ]),
    ("cuda", "cuda/scan_writer.cuh", CUDA, [
        ("no-room-to-turn-a-matrix", "scratch_bytes_ = std::max(scratch_bytes_, «p.k * padded_row(p.n) * signed_size(sizeof(T))»);",
         "std::int64_t{0}"),
    ]),
    ("cuda", "engine/run/recordings.cpp", CUDA, [
        ("first-run-recorded", "«seen_.push_back({addresses, nullptr}); return work();»",
         "seen_.push_back({addresses, nullptr}); if (!FAULT) return work();"),
        ("newest-goes", "const auto oldest = «std::ranges::find_if(seen_, recorded)»;", "std::prev(seen_.end(), 2)"),
        ("not-the-last-used", "«std::rotate(known, known + 1, seen_.end());»", "if (FAULT) std::iter_swap(known, seen_.end() - 1); else std::rotate(known, known + 1, seen_.end());"),
    ]),
    ("cuda", "engine/plan/compile_scan.cpp", CUDA, [
        ("one-of-two-as-a-kernel", "«keep_op_by_op_together();» } void Compiler::keep_op_by_op_together()", None),
    ]),

    ("slopes", "ops/elementwise.def", RULES, [
        ("relu-one-at-zero", "where(x <= X(0), X(0), x), unless(«less_equal(x, 0.0)», ct)", "less(x, 0.0)"),
        ("abs-one-at-zero", "ct * «sign(x)»", "greater_equal(x, 0.0) * 2.0 - 1.0"),
        ("max-tie-lost", "unless(«less(a, b)», ct), unless(greater_equal(a, b), ct)", "less_equal(a, b)"),
        ("max-tie-counted-twice", "unless(less(a, b), ct), unless(«greater_equal(a, b)», ct)", "greater(a, b)"),
        ("min-tie-lost", "unless(«greater(a, b)», ct), unless(less_equal(a, b), ct)", "greater_equal(a, b)"),
        ("min-tie-counted-twice", "unless(greater(a, b), ct), unless(«less_equal(a, b)», ct)", "less(a, b)"),
        ("nan-hidden-by-relu", "x), unless(«less_equal(x, 0.0)», ct)", "equal(greater(x, 0.0), 0.0)"),
    ]),
    ("slopes", "ops/elementwise.cpp", RULES, [
        ("pow-zero-to-zero", "return «select(equal(a, 0.0) * equal(b, 0.0), 1.0, b) - 1.0»", "b - 1.0"),
        ("infinite-cotangent-masked", "Tensor unless(Tensor mask, Tensor ct) { return «select(mask, zero_like(ct), ct)»; }", "ct * equal(mask, 0.0)"),
        ("known-power-goes-on", "const auto n = known_number(b); if («!n») return", "true"),
        ("pow-log-of-zero", "return «positive * log(select(positive, a, 1.0))»", "log(a)"),
        ("silu-without-second-term", "return s * («1.0 + x * (1.0 - s)»)", "1.0 + x * 0.0"),
        ("gelu-tanh-cubic", "(c + square(x) * («3 * c * 0.044715»))", "2 * c * 0.044715"),
        ("gelu-density", "0.5 * (1.0 + erf(x * 0.7071067811865476)) + «x * density»", "x * density * 0.5"),
        ("erf-constant", "«1.1283791670955126»", "1.12838"),
    ]),
    ("slopes", "ops/reduce.cpp", RULES, [
        ("max-over-tie-counted-twice", "c.ct * («hit / sum(hit, axes, kKeep)»)", "hit"),
        ("broadcast-not-summed", "t.dim(d) != 1)) «axes.push_back(d);»", None),
    ]),
    ("plan", "ops/reduce.cpp", (*PLANS, *BODIES), [
        ("other-axes-left-out-of-a-row", "return axis == last || «c.in[0].shape[uz(axis)] == 1»;", "true"),
    ]),
    ("slopes", "ops/solve.cpp", RULES, [
        ("triangular-solve-unread-part", "tril(matrix_ct(ct_b, c.out, transposed), «unit ? -1 : 0»)", "0"),
        ("triangular-solve-not-transposed", "c.ct, {.transpose = «!transposed», .unit", "transposed"),
    ]),
    ("slopes", "ops/matmul.cpp", RULES, [
        ("matmul-flag-of-b", "matmul(c.ct, b, {false, «!tb»})", "tb"),
        ("matmul-flag-of-a", "matmul(c.ct, a, {true, «ta»})", "!ta"),
    ]),
    ("slopes", "ops/index.cpp", RULES, [
        ("tril-diagonal", "return tril(c.ct, «static_cast<int>(c.attrs.as<TrilAttrs>().diagonal)»)",
         "static_cast<int>(c.attrs.as<TrilAttrs>().diagonal) - 1"),
    ]),

    ("reverse", "autograd/reverse.cpp", DERIVATIVES, [
        ("last-use-counts-alone", "«accumulate(cotangents_[at(id)], ct);»",
         "if (FAULT) cotangents_[at(id)] = ct; else accumulate(cotangents_[at(id)], ct);"),
        ("last-final-counts-alone", "«accumulate(scans_[n.inputs[0]].finals[n.attrs.as<FinalAttrs>().carry], ct);»",
         "if (FAULT) scans_[n.inputs[0]].finals[n.attrs.as<FinalAttrs>().carry] = ct; else accumulate(scans_[n.inputs[0]].finals[n.attrs.as<FinalAttrs>().carry], ct);"),
        ("last-stack-counts-alone", "«accumulate(scans_[n.inputs[0]].stacks[n.attrs.as<StackAttrs>().node], ct);»",
         "if (FAULT) scans_[n.inputs[0]].stacks[n.attrs.as<StackAttrs>().node] = ct; else accumulate(scans_[n.inputs[0]].stacks[n.attrs.as<StackAttrs>().node], ct);"),
        ("given-start-forgotten", "if («initial[i].defined()») cotangents_", "false"),
        ("level-of-the-program", "level_ = std::max(level_, «1 + highest_level(graph.node(id))»)",
         "highest_level(graph.node(id))"),
        ("cut-operand-passes", "!depends(n.inputs[i]) || «!passes(n, i, graph_.node(n.inputs[i]))»", "false"),
        ("ranges-that-meet-are-joined", "const bool meets = «(next != all.by_begin.end() && next->first < end)» ||", "false"),
        ("ranges-of-two-axes-are-joined", "if (meets || «(axis != all.axis && !all.by_begin.empty())») add_ranges", "false"),
        ("gaps-of-ranges-are-closed", "if («begin == reached») return; Shape gap", "true"),
    ]),
    ("reverse", "autograd/missed_paths.cpp", DERIVATIVES, [
        ("other-way-in-not-refused", "if («meets(seeds, dependents(g.nodes(), marks(g, {s.id})))») throw", "false"),
        ("way-through-steps-not-refused", "if («!after[uz(of)]») continue", "true"),
        ("way-through-steps-of-the-capture-alone", "over_steps(«MadeOf(asked.wrt).inputs(body)»)",
         "std::vector<NodeId>{body.lift(asked.wrt)}"),
        ("loop-around-not-asked", "if («home.depth() <= asked.wrt.graph().depth()») return", "true"),
        ("moved-out-not-gone-through", "«out.push_back(c);» for (const GradSeed& s", None),
    ]),
    ("reverse", "engine/plan/dependence.cpp", DERIVATIVES, [
        ("carry-through-another-carry", "«marked[uz(carries[k])] = found[uz(nexts[k])], grew = true;»", None),
        ("integers-differentiable",
         "return «is_float(n.spec.dtype) && is_float(source.spec.dtype)» ?", "true"),
    ]),
    ("reverse", "autograd/grad.cpp", DERIVATIVES, [
        ("numbers-are-variables", "if («t.graph().node(t.id()).of_numbers») throw", "false"),
        ("cotangent-may-be-cut", "if (const std::string cut = where_cut(u[i], g); «!cut.empty()»)", "false"),
        ("seed-of-two", "constant(Array::scalar(«1», value.dtype()), loc)", "2"),
        ("jvp-first-tangent-for-all", "second.push_back({g[i], tangents[«i»]})", "0"),
        ("silent-zero", "if («!options.allow_zero») { const std::string y", "false"),
    ]),
    ("reverse", "autograd/custom.cpp", (files("autograd/custom"), files("autograd/")), [
        ("region-not-marked", "«context().emit.region = new_region();»", None),
        ("rule-of-first-input", "[uz(rule.outs[«uz(c.input)»])]",
         "0"),
    ]),

    ("fold-scales", "autograd/fold_scales.cpp", (files("autograd/fold_scales"), files("autograd/")), [
        ("sign-lost", "if («op == &sub_op») scaled", "false"),
        ("rows-are-numbers", "factor == 0 ? a : b; if («x.spec().size() >= product.spec().size()») continue", "false"),
        ("any-factor-scales", "«!is_number(number)») continue", "false"),
        ("product-made-twice", "if («live[uz(fold.product)]») carries", "false"),
    ]),
    ("scan-derivative", "autograd/scan_vjp.cpp", DERIVATIVES, [
        ("unread-carry-pulled-back", "out[i] = «out[i] && active[i]»;", "active[i]"),
        ("carry-after-the-step", "inputs_.push_back(add_stack(«i»))", "body_->outs[uz(i)]"),
        ("same-direction", "inputs, loop.steps, «!loop.reverse»", "loop.reverse"),
        ("schedule-lost", "«loop.every», scan.loc", "0"),
        ("captured-value-dropped", "if («!marked_[uz(i)]») continue; const Tensor sum", "true"),
        ("captured-value-so-far-forgotten", "inputs.push_back(«so_far.defined()» ? so_far", "false"),
        ("captured-value-added-twice",
         "«cotangents_[at(scan.inputs[uz(i)])] = scan_final(back, carry++);»",
         "if (FAULT) add(scan.inputs[uz(i)], scan_final(back, carry++));"
         " else cotangents_[at(scan.inputs[uz(i)])] = scan_final(back, carry++);"),
        ("input-dropped", "if («!marked_[uz(i)]») continue; want(i, needed_xs_", "true"),
        ("last-carry-dropped", "inputs.push_back(«ct != arrived.finals.end()» ? ct->second", "false"),
        ("stack-dropped", "for (const auto& [j, ct] : stacks) «seeds_.push_back(»",
         "if (!FAULT) seeds_.push_back("),
        ("first-carry-dropped",
         "for (NodeId i : step.carries()) «add(scan.inputs[uz(i)], scan_final(back, carry++));»",
         "if (!FAULT || i != step.carries()[0]) add(scan.inputs[uz(i)], scan_final(back, carry++));"
         " else ++carry;"),
        ("invariant-values-stacked", "if («!varies[id]» || is_scan(n))", "false"),
    ]),

    ("arena", "engine/plan/arena.cpp", PLANS, [
        ("freed-one-step-early", "if («buffers[j].last < buffers[i].first» ||",
         "buffers[j].last <= buffers[i].first"),
        ("many-freed-one-step-early", "for (; «buffers[*ended].last < buffers[i].first»; ++ended)",
         "buffers[*ended].last <= buffers[i].first"),
        ("gap-too-small", "if («start >= end + size» && start", "start + kArenaAlignment >= end + size"),
        ("not-aligned", "return «(buffer.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment»",
         "buffer.bytes"),
        ("gaps-not-joined", "if («next != by_offset_.end() && offset + size == next->first») {", "false"),
    ]),
    ("plan", "engine/plan/compile.cpp", PLANS, [
        ("last-use-not-counted", "buffers_[uz(v.buffer)].last = «now()»", "now() - 1"),
        ("value-written-over-one-that-lives", "«lives_over_.contains(donated->second)» ||", "false"),
        ("input-still-used-written-over", "if (!may_reuse(i) || «last_reader_[uz(root)] != group_») return false", "false"),
        ("input-read-otherwise-written-over", "if («root_of(inputs[j]) == root && !may_reuse(j)») return false", "false"),
        ("output-written-over",
         "for (NodeId id : source_.outputs) «last_reader_[uz(root_of(id))] = kNever;»", None),
        ("input-of-scan-written-over",
         "std::size_t& last = last_reader_[uz(root_of(in))]; «last = std::max(last, last_scan);»", None),
        ("lazy-values-freed-early", "copy_outputs(); «extend_lazy_lifetimes();»", None),
        ("cluster-writes-over-what-it-reads-later", "&& «text.last_read[i] <= k» &&", "true"),
        ("cluster-writes-twice-over-one-input",
         "«std::ranges::none_of(nodes, has_taken_it)»", "true"),
        ("product-written-over-its-operand",
         "inputs, [&](std::size_t i) { return «i + 1 == inputs.size()»; }", "true"),
        ("output-not-copied",
         "if («v.place == homes_[k]») continue", "true"),
        ("donated-input-still-read",
         "|| «last_reader_[uz(source_.inputs[donated->second])] >= group_») return false", "false"),
        ("donated-inputs-lost-in-exchange",
         "if («std::ranges::find(over_inputs, late.from, &Late::to) != over_inputs.end()») {", "false"),
        ("donated-input-shown-too-late",
         "if («homes_[k].at < source_.inputs.size()») over_inputs.push_back", "false"),
    ]),
    ("plan", "engine/run/arguments.cpp", PLANS, [
        ("input-twice", "if (const auto before = std::ranges::find(inputs.first(i), inputs[i]); «before != inputs.first(i).end()»)", "false"),
        ("input-given-to-two-outputs", "if («uz(earlier) < donors.size()») throw", "false"),
        ("output-over-two-inputs", "if («donors[output] >= 0») throw", "false"),
        ("donated-of-another-spec", "if («inputs.specs[input] != outputs.specs[output]») throw", "false"),
        ("array-not-the-donated-one", "if (donors[k] >= 0 && «outputs[k].data() != inputs[uz(donors[k])].data()»)",
         "false"),
        ("two-outputs-in-one-array", "if («written_[w - 1].first == written_[w].first») throw", "false"),
        ("output-in-another-input", "if (at == written_.end() || «at->first != inputs[i].data()» ||", "true"),
    ]),
    ("plan", "engine/plan/fusion.cpp", PLANS, [
        ("product-with-two-uses-fused", "if (!plus || «!only_reader_is(term, id)» ||", "false"),
        ("member-under-another-shape", "if («inside && root_of(in) != in») return false", "false"),
        ("needed-cluster-not-issued",
         "if (const int cluster = in_cluster_[uz(root_of(in))]; «cluster != joins») issue(cluster)",
         "false"),
        ("branches-left-apart", "else if («may_merge(into, cluster)») merge(into, cluster);", "false"),
        ("merged-beyond-all-bounds", "if (x.shape != y.shape || «x.nodes.size() + y.nodes.size() >= most_ops(narrow)») return false", "false"),
        ("merged-inputs-beyond-all-bounds", "return «x.inputs.size() + uz(std::ranges::count_if(y.inputs, is_new)) < kMostClusterInputs»", "true"),
        ("row-too-long", "return «row > 1 && row <= kMostClusterRow»", "row > 1"),
        ("sum-keeps-wrong-term", "inputs.push_back(own[«own[0] == sum->second»])", "own[0] != sum->second"),
        ("last-read-too-early", "text.last_read[uz(known)] = «text.ops.size()»", "0"),
    ]),
    ("plan", "engine/core/spread_operand.h", PLANS, [
        ("spread-starts-anew", "out += n, «within = 0»", "within"),
        ("spread-of-runs-walks-once", "if ((counter[d] += d == 0 ? «runs» : 1) < dims_[d].size) break", "1"),
    ]),
    ("plan", "engine/plan/cluster.cpp", PLANS, [
        ("narrow-value-of-first-row", "reinterpret_cast<T*>(out[k]) + (outputs_[k].narrow ? «row» : begin)",
         "0"),
    ]),
    ("plan", "engine/plan/gather_products.cpp", BODIES, [
        ("moved-up-over-what-it-reads", "if («up») std::rotate(at(other + 1), at(i), at(i + 1))", "true"),
        ("moved-down-over-its-reader", "else if («!is_read_between(other, i)») std::rotate", "true"),
        ("step-before-the-read-it-needs", "(follows || «!reads(order_[i], group)»)", "true"),
    ]),
    ("plan", "engine/plan/body_order.cpp", BODIES, [
        ("reads-what-the-step-wrote",
         "matrix_of(i) != before || «std::ranges::any_of(out.steps, writes_over_it)» ||", "false"),
        ("step-that-others-read-left-out",
         "if (follows && «!only_reads(i, products_[uz(out.steps.back())]->c, out.steps.back())») return {}", "false"),
        ("member-of-one-after-another", "return «!may_meet && !depend(a, b)»;", "true"),
        ("vectors-of-each-other", "if («!go_together(parts_of(m), parts_of(i))») return {}", "false"),
        ("group-moved-over-its-readers", "if («may_move_down(g)») {", "true"),
        ("product-moved-over-what-it-reads", "may_move_up = may_move_up && «!depends(i, groups_[g])»", "true"),
    ]),
    ("plan", "engine/plan/body_source.cpp", BODIES, [
        ("transposed-once-for-another-matrix", "return «p.b == q.b» && p.of.b == q.of.b", "true"),
        ("one-matrix-never-shared", "return «copied < all[0].of.n * all[0].of.k»;", "true"),
        ("batch-member-of-another", "if («offsets[i] == static_cast<std::int64_t>(i) * step») continue", "true"),
        ("second-step-from-the-old-matrix", "«from = to;»", None),
        ("rows-that-are-left-forgotten", "if («whole < rows») body +=", "false"),
        ("columns-over-what-is-kept-between", "if («is_summed && outer > 1») return {};", "false"),
        ("columns-of-the-first-rows", "type_of(c.out.dtype), rows, columns, «rows * columns»);", "0"),
    ]),
    ("scan-plan", "engine/plan/compile_scan.cpp", PLANS, [
        ("carries-kept-for-nobody", "«if (!is_made_again()) scan_->every = 0;»", None),
        ("one-checkpoint-too-few", "scan_->copies = «(table_.steps - 1) / scan_->every»",
         "std::max(1, (table_.steps - 1) / scan_->every - 1)"),
        ("other-schedule-recomputed", "return («other == 0 || other == every») &&", "true"),
        ("unread-carry-not-kept", "if (live_[i] && !carried[i]) «carried[i] = grew = true;»", None),
        ("other-parts-recomputed", "«made.same_bytes(part_in(r.id, r.operand))»", "true"),
        ("recomputed-scan-frees-its-inputs", "extend(value(root_of(in)).buffer, «until»)",
         "static_cast<int>(info.instruction)"),
        ("recomputed-scan-frees-its-memory", "for (int b : info.own_buffers) extend(b, «until»)",
         "static_cast<int>(info.instruction)"),
        ("pull-of-a-pull-forgotten",
         "for (NodeId reader : info.pulled_by) until = std::max(until, «last_pull_[reader]»)",
         "static_cast<int>(scans_[uz(reader)].instruction)"),
        ("segment-one-step-short", "segment = cut.bytes * «uz(scan_->every)»", "uz(scan_->every - 1)"),
        ("one-worker-for-all", "c_.is_fused(id_) ? 0 : «bytes * scan_->workers.size()»", "bytes"),
    ]),
    ("scan-run", "engine/run/run_scan.cpp", PLANS, [
        ("carry-in-place-begins-anywhere", "begin = addresses_.begin(c, s); «begin != stays») copy(begin", "false"),
        ("reverse-off-by-one", "table_.reverse ? «s.first - i» : s.first + i", "std::max(0, s.first - i - 1)"),
        ("segments-off-by-one", "const int segment = «time / maker.every»", "(time + 1) / maker.every"),
        ("recomputes-one-step-too-few", "end = begin + «std::min(length, scan.table.steps - begin)»",
         "std::min(length, scan.table.steps - begin) - 1"),
        ("recomputes-from-the-wrong-end", ".first = scan.table.reverse ? «end - 1» : begin", "begin"),
        ("begins-from-the-first-copy", "i == 0 ? -1 : «(i - 1) % scan.copies»", "0"),
        ("stale-segment-of-the-run-before",
         "«for (ScanStep::Worker& w : scan.workers) w.slice = w.segment = -1;»", None, THREADS),
        ("stale-segment-of-another-slice", "if («held.slice == slice_» && held.segment == segment)", "true"),
        ("sums-of-slices-not-added", "«finish_sums(scan.table, program, frame);»", None),
        ("recomputation-stores", "turned(maker, maker.every, segment), «false»)", "true"),
        ("window-left-behind", "*slot = i == 0 || «x.window» ? addresses_.at(x, time)", "false"),
        ("scratch-moved-on", "else if («addresses_.is_stored(stack, s)») *slot +=", "true"),
    ]),
    ("scan-run", "engine/plan/step_addresses.h", PLANS, [
        ("reads-the-step-before", "(v.window ? time % v.window : «time») * v.stride", "(time ? time - 1 : 0)"),
        ("carry-written-over", "base_(0) + («i % 2» && !c.in_place ? c.odd : c.even)", "0"),
        ("carry-of-the-next-segment", "if («i + 1 < s.count») return keeps(c, s)", "true"),
        ("recomputation-writes-the-end", "if («!s.last» || c.final_value < 0)", "false"),
        ("sum-starts-in-every-slice", "c.partial && «!owns(c.part)»;", "false"),
        ("checkpoint-of-the-first-slice", "number) * t_.slices + «slice_») * c.part.bytes", "0"),
        ("term-of-the-first-slice", "base_(c.terms) + «slice_» * c.part.bytes", "0"),
        ("copy-of-every-slice-stored", "return stack.window || (s.store && «owns(stack.part)»);", "true"),
    ]),
    ("slicing", "engine/plan/slicing.cpp", PLANS, [
        ("stride-one-short", "at += uz(index * «strides[uz(f.axis)]») * element",
         "std::max<std::int64_t>(1, strides[uz(f.axis)] - 1)"),
        ("another-slice-owns", "else owner = owner && «index == 0»", "index == 1"),
        ("stack-of-sums", "if («flows[uz(id)].kind == AxisFlow::Kind::partial») return", "false"),
        ("stack-of-mixed", "if («flows[uz(id)].kind == AxisFlow::Kind::mixed») return", "false"),
        ("nothing-sliced", "if («extent < 2») return;", "true"),
    ]),
    ("slicing", "ops/reshape.cpp", (*FORMS, *PLANS), [
        ("place-from-the-front-forgotten", "if («is_place(axis)» && std::equal", "false"),
        ("place-from-the-end-forgotten", "«is_place(place)» && std::equal", "false"),
    ]),
    ("slicing", "engine/plan/flow.cpp", (*FORMS, *PLANS), [
        ("sum-through-nonlinear", "if (sums == n.inputs.size()) return «n.op->is_linear»;", "true"),
        ("sum-times-what-varies", "kind != AxisFlow::Kind::free) «return false»;", "return FAULT"),
        ("carries-begin-alike", "in[c].kind == AxisFlow::Kind::free && «varies(n.inputs[c], next.axis)»", "false"),
        ("carries-stay-alike", "any |= «varying.insert({carry, axis}).second»;", "false"),
        ("pairs-of-slices", "if («out.kind == AxisFlow::Kind::along && out.axis != to») return", "false"),
        ("constant-per-slice", "== out.axis && «varies(n.inputs[i], axis)»)", "false"),
        ("time-axis-followed", "per_step && «f.axis-- == 0»)", "f.axis-- < 0"),
        ("carry-changes-once", "if («changed») continue", "false"),
        ("sum-inside-a-scan", "«inner.partial = false;»", None),
        ("sum-enters-a-scan", "if («f.kind == AxisFlow::Kind::partial») f = mixed", "false"),
        ("function-alike-for-all", "const auto given_varies = [&](NodeId i, int axis) { return «varies(n.inputs[uz(i)], axis)»; };", "false"),
        ("stack-axis-unshifted", "n.op->kind == OpKind::stack) «f.axis += 1;»", None),
    ]),
    ("slicing", "engine/plan/flow.cpp", (files("engine/flow", "ttt/one_text"), LEARNERS), [
        ("rule-not-followed", "if («options_.rules») if (const std::string why = why_rule_mixes", "false"),
        ("cotangent-is-a-sum", "if («back.kind == AxisFlow::Kind::partial») return", "false"),
        ("cotangent-along-another-axis", "if («back.kind == AxisFlow::Kind::along && back.axis != of.axis») return", "false"),
    ]),
    ("stepped", "engine/plan/stepped.cpp", (files("engine/stepped", "engine/slicing"), *PLANS), [
        ("read-in-pieces", "if («extent > 1 && stride(axis) != inside») return std::nullopt", "false"),
        ("backwards-view", "if («view.strides[0] < 0») return", "false"),
        ("inverse-of-a-shifted-view", "if («in.size() != out.size() || view.offset != 0») return", "false"),
        ("other-slices", "«theirs.same_bytes(part)»", "true"),
        ("slices-overlap", "out.at.push_back(s * «steps» * part.bytes)", "(steps - 1)"),
        ("sum-slice-by-slice", "else if («!part.partial» && std::ranges::count(part.owner, 0)", "true"),
        ("offset-forgotten", "std::int64_t at = «view.offset»", "0"),
    ]),
    ("memory", "engine/plan/rematerialize.cpp", (files("engine/rematerialize"), *PLANS), [
        ("nothing-recomputed", "scan.computed = «cut.computed()»", "std::vector<char>(body.nodes.size(), 0)"),
        ("kept-is-free",
         "cut.keep(v, «kept[uz(v)] ? price_of_reading(n.spec) : price_of_keeping(n.spec)»)",
         "Bytes(0)"),
    ]),
    ("memory", "engine/plan/price.cpp", (files("engine/rematerialize", "engine/recompute_carries"), *PLANS), [
        ("products-recomputed", "if («!n.op->element_loop») return std::nullopt", "false"),
        ("dear-products", "n.op->kernel_adding_to ? «kProducts» : kElementwise", "kElementwise / 8"),
    ]),
    ("memory", "engine/plan/recompute_carries.cpp", (files("engine/recompute_carries"), *PLANS), [
        ("no-carry-recomputed", "if («out.carries.empty()» || out.served.empty())", "true"),
        ("read-as-a-whole", "if («all_read_step_by_step(graph_, readers_[uz(stack)])») served_", "true"),
        ("dear-carries", "cut.compute(v, «running»)", "std::optional<Bytes>(0)"),
        ("slices-unlike", "if («!alike(again)») unlike", "false"),
    ]),
    ("memory", "engine/plan/compile_scan.cpp", (files("engine/recompute_carries"), *PLANS), [
        ("begins-too-early", "return c_.use(«first»);", "c_.node(stack.inputs[0]).inputs[0]"),
        ("copies-die", "info_.own_buffers.push_back(«static_cast<int>(place.at)»)", "0"),
    ]),
    ("memory", "engine/plan/recompute_regions.cpp", (files("autograd/custom"), *PLANS), [
        ("outputs-of-a-region-recomputed",
         "if («outside(id, in) && g.node(id).level <= g.node(in).level») boundary[", "false"),
        ("regions-kept",
         "if («std::ranges::none_of(g.nodes(), [](const GraphNode& n) { return n.region != 0; })») return from", "true"),
    ]),
    ("memory", "engine/plan/recompute_values.cpp", (files("engine/recompute_values"), *PLANS), [
        ("nothing-computed-again", "if («std::ranges::count(again, 1) == 0») return from", "true"),
        ("small-values-too", "«static_cast<Bytes>(n.spec.bytes()) >= least»", "true"),
        ("what-scans-read-too", "if («is_scan(n)» || (n.op->is_alias", "false"),
        ("outputs-too", "for (NodeId id : from.outputs) out.kept[uz(id)] = «1»", "0"),
        ("all-at-once", "if («longest < kLongest») again", "true"),
    ]),
    ("memory", "engine/plan/passes.cpp", (files("engine/slicing"), *PLANS), [
        ("sums-added-up-in-another-order", "«!sums_alike(moved, from)» ? from : moved", "false"),
    ]),
    ("simplify", "ops/permute.cpp", (*SIMPLIFY, *CUDA), [
        ("axes-of-ones-count", "if («from[uz(axis)] == 1») continue; if (axis < last)", "false"),
        ("order-that-does-not-go-back", "out[uz(order[i])] = «static_cast<int>(i)»;", "order[i]"),
    ]),
    ("functions", "engine/run/function.cpp", (files("autograd/custom", "engine/function", "engine/misuse"),), [
        ("computed-inputs-accepted", "if («graph_->node(id).op->kind != OpKind::input»)", "false"),
        ("region-of-a-called-function-forgotten", "emission.region = «region»;", "0"),
        ("scope-of-a-called-function-forgotten", "n.scope.empty() ? around.scope : «ScopeName(around.scope, n.scope.str())»",
         "around.scope"),
    ]),
    ("budget", "engine/run/plan.cpp", (files("engine/plan_test"),), [
        ("cheap-values-kept", "std::greater<>>{options.recompute_above, «std::size_t{0}»})",
         "options.recompute_above"),
    ]),
    ("simplify", "ops/matmul.cpp", SIMPLIFY, [
        ("column-taken-for-a-row", "return «swap» ? reshape(x, shape) : x;", "false"),
        ("every-narrow-product-elementwise", "if («k != 1» || (m != 1 && n != 1)", "false"),
        ("outer-products-elementwise", "if (k != 1 || «(m != 1 && n != 1)»", "false"),
    ]),
    ("simplify", "ops/simplify.cpp", SIMPLIFY, [
        ("cube-for-square", "if (*n == 3) return «x * square(x)»;", "square(x)"),
        ("quotient-for-any-power", "return «*n == -1» ? reciprocal(x)", "true"),
        ("factors-leave-the-range", "return «std::abs(x) > 1e-6 && std::abs(x) < 1e6»", "true"),
        ("negated-factor", "times(inner.x, «-inner.by»)", "inner.by"),
        ("products-of-other-flags", "|| «flags(a)[shared] != flags(b)[shared]»)", "false"),
        ("merged-untransposed", "if («flags(a)[other] != flags(b)[other]») y = transpose(y)", "false"),
        ("factor-that-varies", "same_for_all = same_for_all && («own < 0 || factor.dim(own) == 1»)", "true"),
        ("broadcast-lost",
         "const auto c = known_number(input_of(t, 1 - i)); if (!c || «x.spec() != t.spec()») continue", "false"),
        ("rows-added-to-zeros", "if (is(t, scatter_op)) return index_add(«x», input_of(t, 0)", "x * 0.0"),
        ("difference-turned-round", "return «input_of(x, 1) - input_of(x, 0)»",
         "input_of(x, 0) - input_of(x, 1)"),
    ]),
    ("graph", "engine/core/body.cpp", PLANS, [
        ("bodies-with-other-attributes-shared", "(a.op->kind == OpKind::input || «a.attrs == b.attrs»)",
         "true"),
        ("bodies-with-other-outputs-shared", "«a.outs == b.outs» &&", "true"),
        ("equal-bodies-counted-apart", "«body.computation = known->computation;»", None),
    ]),
    ("graph", "engine/core/attrs.h", (files("engine/attrs"), *PLANS), [
        ("attributes-of-one-struct-equal", "«held_->same_as(*other.held_)»", "true"),
        ("first-field-alone", "return («same(a, b) && ...»)", "same(a, b) || ..."),
    ]),
    ("graph", "engine/core/attrs.cpp", (files("engine/attrs"), *PLANS), [
        ("literals-equal", "a.spec() == b.spec() && «a.same_bits(b)»", "true"),
    ]),
    ("random", "engine/core/random.cpp", (files("engine/random"),), [
        ("stream-without-its-upper-half", "low(stream), «high(stream)»}, {low(seed)", "0u"),
        ("index-off-by-one", "Words words = Blocks{seed, stream}[«index»]", "index + 1"),
        ("below-biased", "if («low(product) >= passed_over») return", "true"),
    ]),

    ("law", "ttt/forms/law.cpp", FORMS, [
        ("mask-excludes-the-token", "out.after.z = «tril(r)»", "tril(r, -1)"),
        ("mask-includes-the-token", "out.before.z = «tril(r, -1)»", "tril(r)"),
        ("end-without-the-last-token", "end.z = slice(«out.after.z», -2", "out.before.z"),
        ("new-gradient-decays-at-once", "Tensor z = «times(law.r[i], e)»",
         "law.p[i][i].defined() ? times(times(law.r[i], e), law.p[i][i]) : times(law.r[i], e)"),
        ("old-gradient-does-not-decay", "z = add(z, «times(law.p[i][j], carry[j])»)",
         "i == j ? carry[j] : times(law.p[i][j], carry[j])"),
        ("products-in-the-other-order", "c = add(c, times(law.p[i][k], carry[«n + k * n + j»]))",
         "n + j * n + k"),
        ("before-is-after", "out.z_before.push_back(r.ys[«i»])", "total + i"),
        ("start-before-is-after", "out.c_before = square_of(r.ys, «0»)", "total"),
        ("start-forgotten", "init.push_back(full(dtype, one, i == j ? «1.0» : 0.0))", "0.0"),
        ("place-scales-the-start", "reads.c[j] = «j == 0» ? 1.0 + p", "false"),
        ("place-of-slots-moved", "«if (i == 0)» go_part_of_the_way(end, last, 1)", "if (i == 0 || FAULT)"),
        ("places-misaligned",
         "go_part_of_the_way(out.before, «pad(slice(position, 0, 0, tokens - 1), 0, 1, 0)», tokens)",
         "position"),
        ("places-misaligned-in-sums",
         "if (position.defined()) earlier = «pad(slice(position, 0, 0, tokens - 1), 0, 1, 0)»",
         "position"),
        ("gradient-point-after-the-step", "reads_of(«sums.z_before[i], sums.c_before[i]», sums.width)",
         "FAULT ? sums.z_after[i] : sums.z_before[i], FAULT ? sums.c_after[i] : sums.c_before[i]"),
        ("gradient-point-includes-the-token",
         "return sum_up(step, lead, tokens, dtype, {})«.before»",
         ".*(FAULT ? &BlockLaw::after : &BlockLaw::before)"),
        ("place-of-last-token-is-first",
         "const Tensor last = position.defined() ? «slice(position, 0, tokens - 1, tokens)»",
         "slice(position, 0, 0, 1)"),
    ]),
    ("step-law", "ttt/forms/step_law.cpp", FORMS, [
        ("coupled-weights-accepted", "if («optimizer.couples_weights()») throw", "false"),
        ("mixed-elements-are-one-number", "return «is_elementwise(*n.op, graph_->node(n.inputs[0]).spec, n.spec)» ?",
         "true"),
        ("one-number-for-all-features", "if («t.defined() && t.rank() > 0») width", "false"),
    ]),
    ("dual", "ttt/forms/dual.cpp", FORMS, [
        ("reads-the-other-side", "«policy_.read == Policy::Read::after_write» ? after : before",
         "policy_.read != Policy::Read::after_write"),
        ("rate-forgotten", "rate.defined()) «each.b = each.b * rate;»", None),
        ("loss-after-is-before", "read(loss, state, f, «after», rows)}", "before"),
        ("gates-of-a-chunk-summed", "return «mean(reshape(value, parts), {-2})»",
         "sum(reshape(value, parts), {-2})"),
        ("average-forgotten", "if («policy_.average») {", "false"),
        ("loss-at-first-is-before", "const State first{«first_», std", "state.weights"),
    ]),
    ("factors", "ttt/forms/factors.cpp", FORMS, [
        ("held-use-learns", "if («use.held») return y; probed", "false"),
        ("inner-gradient-constant", "out.push_back({p.use.weight, p.rows, «d[i]», false})",
         "stop_gradient(d[i])"),
        ("inner-gradient-constant-transposed", "out.push_back({p.use.weight, «d[i]», p.rows, true})",
         "stop_gradient(d[i])"),
        ("transposed-use-with-other-factor", "y = y + matmul(scores(r, x, «f.b»), f.a)", "f.a"),
        ("factor-of-another-weight", "for (const Factor& f : factors) if («f.weight == weight») y", "true"),
        ("unreached-weight-accepted", "if («!reached[i]») throw", "false"),
        ("end-without-decay", "«(end.feature_axis ? transpose(end.c[j]) : end.c[j]) * states[j]»",
         "j == 0 ? states[j] : (end.feature_axis ? transpose(end.c[j]) : end.c[j]) * states[j]"),
        ("bias-without-decay", "const Tensor part = «r.c[j] * states[j]»",
         "j == 0 ? broadcast_to(states[j], (r.c[j] * states[j]).shape()) : r.c[j] * states[j]"),
    ]),
    ("wy", "ttt/forms/wy.cpp", FORMS, [
        ("sign-of-the-system", "triangular_solve(«-pairs», right", "pairs"),
        ("offset-forgotten", "state.of(0), use.rows, use.transposed) + «use.offset»", "use.offset * 0.0"),
        ("rates-misaligned", "pairs * (rate.rank() ? «transpose(rate)» : rate)", "rate"),
        ("factor-per-feature", "if («!column.defined()») refuse", "false"),
        ("held-use-accepted", "if («use.held») refuse", "false"),
    ]),
    ("primal", "ttt/forms/primal.cpp", FORMS, [
        ("before-is-after", ": «s.weights.values()»; const std::vector<Tensor> gone", "s.with(step.carries).weights.values()"),
        ("reads-the-other-side", "answers( «policy_.read == Policy::Read::after_write» ? walk.after",
         "policy_.read != Policy::Read::after_write"),
        ("rate-forgotten",
         "rate.defined()) «d[i] = d[i] * (rate.rank() ? tokens_first(rate) : rate);»", None),
        ("gates-misaligned", "columns[name] = transpose(tokens_first(«rows»))",
         "tokens > 1 ? concat({slice(rows, -2, 1, tokens), slice(rows, -2, 0, 1)}, -2) : rows"),
        ("inner-gradient-constant", "«return» optimizer_.joint(std::move(d))",
         "if (FAULT) for (Tensor& t : d) t = stop_gradient(t); return"),
        ("norm-over-all-weights-forgotten", "return «optimizer_.joint(std::move(d))»", "d"),
        ("places-misaligned", "w + for_each_weight(«earlier», w)", "block.position"),
        ("place-of-last-token-is-first", "slice(block.position, 0, «tokens - 1, tokens») : block.position",
         "FAULT ? 0 : tokens - 1, FAULT ? 1 : tokens"),
        ("way-loses-small-steps", "ways.push_back(«carry[states + i] + moved»)",
         "(step.carries[step.carries.size() - optimizer_.slots(s.weights.at(i)).size() - 1] - at.weights.at(i).value)"),
        ("way-begins-with-the-block", "carried.push_back(«block.earlier.defined()» ? now - at", "false", DECODING),
        ("loss-before-is-first",
         "for (const Weights& w : {for_each_token(first_, block.tokens()), «walk.before», walk.after})",
         "for_each_token(first_, block.tokens())"),
    ]),
    ("step-members", "ttt/forms/step_members.cpp", (files("ttt/step_members"),), [
        ("meeting-members-accepted", "«f.kind == AxisFlow::Kind::mixed») return fmt::format", "false"),
        ("chunks-not-in-front", "if («chunks») spec.shape.insert", "false"),
    ]),
    ("own-rows", "ttt/derived_learner.cpp", (files("ttt/energy_learner"),), [
        ("rows-of-the-sequence", "learner_.predict(w.apart(), «probe(x)»)", "x"),
        ("weights-of-the-sequence", "learner_.predict(«w.apart()», probe(x))", "w"),
        ("keys-of-the-sequence", "learner_.loss(w.apart(), «probe(k)», probe(v))", "k"),
        ("keys-of-the-sequence-in-gates", "learner_.gates(spread.apart(), «probe(k)», probe(v), probe(place))", "k"),
    ]),
    ("misuse", "models/training.cpp", (files("models/misuse"),), [
        ("gradient-of-any-shape", "if («gradients[i].defined() && gradients[i].spec() != params[i].spec()»)", "false"),
        ("start-from-any-number", "if (const std::int64_t at = first_not_finite(value); «at >= 0»)", "false"),
        ("empty-objective", "ObjectiveFn& objective) { «require_function(\"train\", \"the objective\", objective);» if (here()", None),
    ]),
    ("misuse", "models/decoder.cpp", (files("models/misuse"),), [
        ("learns-twice-after-a-failure", "«is_broken_ = learns;»", None),
    ]),
    ("misuse", "models/streams.cpp", (files("models/misuse"),), [
        ("leaves-half-read", "Stopped Streams::leave(Id stream) { «require_whole();»", None),
    ]),
    ("misuse", "engine/core/moved_from.h", (files("models/misuse"),), [
        ("moved-from-unnoticed", "if («gone_») throw", "false"),
    ]),
    ("compose", "ttt/compose.cpp", (files("ttt/compose"),), [
        ("held-learns-side-by-side", "parts.push_back(models[m].f(«models[m].start.with(own).with_held(held)»,", "models[m].start.with(own)"),
    ]),
    ("misuse", "ttt/compose.cpp", (files("models/misuse"),), [
        ("loss-without-function", "«require_function(\"composed\", \"what the loss computes, InnerLoss::f,\", loss_.f);»", None),
        ("model-without-function", "«require_function(\"composed\", \"what the model computes, Model::f,\", model_.f);»", None),
    ]),
    ("misuse", "engine/processes/threads.cpp", (files("engine/misuse"),), [
        ("ranks-without-function", "«require_function(\"processes\", \"what the ranks do\", fn);»", None),
    ]),
    ("misuse", "ttt/inner_loop.cpp", (files("ttt/inner_loop"),), [
        ("block-of-nothing", "if («options.block < 1») throw", "false"),
        ("documents-at-multiples-of-nothing", "if («views.alignment < 1») throw", "false"),
        ("places-beyond-a-chunk", "position.dim(0) >= least && «position.dim(0) <= chunk»", "true"),
    ]),
    ("misuse", "ttt/causal_attention.cpp", (files("ttt/causal_attention"), files("ops/sweep"), files("models/misuse")), [
        ("window-without-end", "|| «window_of(c.attrs) > kMostWindow»)", "false"),
    ]),
    ("misuse", "models/state_program.cpp", (files("models/misuse"),), [
        ("state-of-the-token", "if («of_tokens[uz(start.function.outputs()[i])]»)", "false"),
    ]),
    ("per-chunk", "ttt/forms/per_chunk.cpp", (*FORMS, files("ttt/step_members")), [
        ("answers-of-any-shape", "if («out.shape() != wanted») throw FormError(fmt::format(\"[predict] needs", "false"),
        ("average-forgotten", "if («policy_.average») for", "false"),
        ("one-step-only", "step < «policy_.steps»", "1"),
        ("partial-chunk-writes", "out.next = «block.writes» ? learnt", "true"),
        ("reads-the-other-side", "«policy_.read == Policy::Read::after_write» ? out.next : state",
         "policy_.read != Policy::Read::after_write"),
        ("rate-forgotten", "const Tensor b = «rate.defined()» ? f.b * rate", "false"),
        ("rate-forgotten-directly", "const GradSeed seed = «rate.defined()» ? GradSeed", "false"),
        ("one-use-counts-alone", "«accumulate(out[f.weight], g);»",
         "if (FAULT) out[f.weight] = g; else accumulate(out[f.weight], g);"),
        ("norm-over-all-weights-forgotten", "return «optimizer_.joint(mean_gradients(at, block))»", "mean_gradients(at, block)"),
        ("held-use-learns", "«.with_held(at.spread(block.k.dim(-2)).values())»; const Tensor l",
         ".with_held((FAULT ? at.with(probes) : at).spread(block.k.dim(-2)).values())"),
        ("chunk-gates-unaveraged", "const Gates columns = «chunk_gates(block.gates)»; for (int step",
         "[&] { Gates first; for (const auto& [gate, rows] : block.gates)"
         " first[gate] = transpose(slice(rows, -2, 0, 1)); return first; }()"),
    ]),
    ("chunk-parallel", "ttt/forms/chunk_parallel.cpp", FORMS, [
        ("before-is-after", "return {{next}, {«carry[0]», next}}", "next"),
        ("slots-after-the-chunk", "return {Tensors(next.begin() + 1, next.end()), «carry»}",
         "Tensors(next.begin() + 1, next.end())"),
        ("weight-does-not-decay", "const Tensor next = «(varies ? x[1] : p) * carry[0] + x[0]»",
         "carry[0] + x[0]"),
        ("reads-the-other-side", "for (const Tensor& w : «reads_after» ? after_each : before_each)",
         "!reads_after"),
        ("gate-of-another-name", "return each(like, [&](Tensor) { return «*next++»; });", "*next"),
        ("weight-adds-to-itself", "Tensors states{over_chunks(«zeros(w.dtype(), w.shape())», gradient.dim(0))}",
         "(FAULT ? w : zeros(w.dtype(), w.shape()))"),
    ]),
    ("linear", "ttt/forms/linear.cpp", FORMS, [
        ("offset-accepted", "if («!state && !mentioned && !rules_.offsets») rules_", "false"),
        ("product-of-two-accepted", "if («state && mentioned») rules_", "false"),
        ("mixed-elements-accepted", "if («!is_elementwise(*n.op, call.in(0), n.spec)») rules_", "false"),
        ("one-path-counts-alone", "«accumulate(out[source], part);»",
         "if (FAULT) out[source] = part; else accumulate(out[source], part);"),
    ]),
    ("form", "ttt/forms/form.cpp", FORMS, [
        ("inner-gradient-constant", "if («policy_.meta == Policy::Meta::first_order») w", "true"),
        ("first-order-is-full", "if («policy_.meta == Policy::Meta::first_order») w", "false"),
        ("offset-forgotten", "if («!block.offset.empty()») w", "false"),
    ]),
    ("state", "ttt/state.cpp", FORMS, [
        ("ascent-is-descent", "if («!policy.ascent») return out", "true"),
        ("common-rate-only", "out = «out.defined() ? out * at->second : at->second»",
         "out.defined() ? out : at->second"),
        ("gates-of-a-chunk-summed", "return transpose(«mean(value, {-2}, kKeep)»)",
         "sum(value, {-2}, kKeep)"),
        ("gates-misaligned", "each(views.gates, «cut»), views.position, {}}",
         "[&](Tensor x) { const Tensor all = cut(x); const std::int64_t n = all.dim(2); return FAULT && n > 1"
         " ? concat({slice(all, 2, 1, n), slice(all, 2, 0, 1)}, 2) : all; }"),
        ("partial-chunk-writes", "part(views, begin, end), «policy.writes(end - begin, views.k.dim(2))»",
         "true"),
        ("position-of-a-part", "slice(views.position, 0, 0, «std::min(end - begin, views.position.dim(0))»)",
         "std::min(end - begin, views.position.dim(0)) - 1"),
        ("whole-chunks-do-not-write", "all.position, {}}, «true», {}, {}}", "all.writes"),
        ("slots-of-some-weights-lost", "«whole.slots[place] = learnt.slots[i];»", None),
        ("held-weights-forgotten", "«held[places_[i]] = w.held(w.at(i).name);»", None),
    ]),
    ("inner-loop", "ttt/inner_loop.cpp", (*FORMS, files("ttt/slices")), [
        ("last-part-does-not-learn", "«state_ = r.next;» }", "if (!FAULT || begin == 0) state_ = r.next;"),
        ("carry-without-gradient", "State state = moved_by(begun(state_.with(«carry»), start_",
         "[&] { Tensors cut = carry; if (FAULT) for (Tensor& t : cut) t = stop_gradient(t); return cut; }()"),
        ("cut-one-chunk-late", "return equal(«multiple», number) *", "multiple + (period > 1 ? 1.0 : 0.0)"),
        ("cut-of-the-next-chunk", "all.cut = «slice(cuts_, 0, 0, blocks)»",
         "(blocks < cuts_.dim(0) ? slice(cuts_, 0, 1, blocks + 1) : slice(cuts_, 0, 0, blocks))"),
        ("cut-of-the-rest-forgotten", "if («cuts_.defined()») state_ = cut_state", "false"),
        ("chunks-counted-over-documents", "number = «(1.0 - begins[0])» * (carry[0] + 1.0)", "1.0 + 0.0 * begins[0]"),
        ("chunks-before-forgotten", "if («before.defined()») number = number + before;", "false"),
        ("first-chunk-of-a-document-cut", "return equal(multiple, number) * «(1.0 - equal(number, 0.0))»", "constant(1.0, number.dtype())"),
        ("query-kept-apart",
         "Views views = given_views; if («policy.query_is_key») views.q = views.k; check_views",
         "false"),
        ("state-not-carried-on", "if («!options.policy.carry») continue", "true"),
        ("carried-and-not-cut", "if («options.policy.meta == Policy::Meta::truncated») now.chunks_before", "false"),
        ("chunk-offset-of-the-first", "block.offset = at_chunk(options_.gradient_offset, «index»)", "0"),
        ("last-chunk-always-together", "const bool by_chunks = «row.block == BlockSize::one_chunk || "
         "row.block == BlockSize::all_chunks»;", "false"),
        ("rest-as-one-chunk",
         "if («row.block == BlockSize::one_chunk || row.block == BlockSize::any») return run_block", "true"),
    ]),
    ("gates", "ttt/check_gates.cpp", (files("ttt/refusals"),), [
        ("unread-gates-taken", "if («optimizer.has_own_pieces()») return;", "true"),
    ]),
    ("table", "ttt/forms/table.cpp", (files("ttt/conformance"), *FORMS), [
        ("large-chunks-at-once", "return «d.policy().chunk > kFewTokens»", "false"),
        ("members-ignored", "return «d.members() > 1» ||", "false"),
        ("slower-chosen", "if («row.slower && row.slower(d)») {", "false"),
        ("chunks-that-meet-at-once", "row.block != BlockSize::one_chunk ? «d.why_chunks_meet()» : why", "why"),
    ]),
    ("table", "ttt/forms/table.cpp", (files("ttt/compose"),), [
        ("moved-for-each-token", "d.policy().chunk != 1 && «d.optimizer().moves_gradient_point_by_token()»", "false"),
    ]),
    ("form", "ttt/forms/form.cpp", (files("ttt/optimizers"),), [
        ("even-point-not-moved", "else if («optimizer_.moves_gradient_point_by_token()»)", "true"),
    ]),
    ("looking", "look/gradient_parts.cpp", (files("look/numbers_test"),), [
        ("sizes-are-the-rate", "loop.views.gates[«kWriteSize»] = sizes", "\"rate\""),
    ]),
    ("looking", "look/views/curvature.cpp", (files("look/numbers"),), [
        ("own-answers-forgotten", "concat({later, last}, 0)) + «concat(own[i], 0)»", "0.0 * concat(own[i], 0)"),
        ("all-answers-read-the-last-weights", "const std::int64_t first = «policy.update == Policy::Update::per_token» ?", "false"),
    ]),
    ("looking", "look/views/estimators.cpp", (files("look/numbers_test"),), [
        ("own-gates-not-held", "w.with(«constants(w.values())»).with_held(", "w.values()"),
    ]),
    ("looking", "look/views/one_token.cpp", (files("look/numbers_test"),), [
        ("own-rates-forgotten", "«gates[name] = rows;»", None),
    ]),
    ("conformance", "ttt/conformance.cpp", (files("ttt/conformance"),), [
        ("alone-beside-itself", "worst = worse(worst, relative_error(«here», part_of(together, {b, h, 0, 0}, here.shape())));", "part_of(together, {b, h, 0, 0}, here.shape())"),
        ("overflow-of-both-ways-not-told", "if («!finite(one) && !finite(other)») note", "false"),
        ("overflow-not-told", "«finite(first) && std::isfinite(worst)» ? \"\" :", "true"),
    ]),
    ("derived-learner", "ttt/derived_learner.cpp", (files("ttt/refusals", "ttt/parallel_forms", "ttt/policies"), *FORMS), [
        ("gradient-that-depends-on-a-weight",
         "if («side.defined() && mentions(side, w.at(on).value)») return", "false"),
        ("gradient-that-depends-on-another-weight", "if (side.defined() && «mentions(side, w.at(on).value)»)",
         "of == on && mentions(side, w.at(on).value)"),
        ("system-for-each-output", "if («affine_use(*this, w, k, v).transposed» &&", "false"),
        ("wy-cuts-nothing", "require(Property::full_meta, «policy_.meta == Policy::Meta::full»,", "true"),
        ("cut-inside-a-block", "require(Property::uncut_meta, «policy_.meta != Policy::Meta::truncated»,", "true"),
        ("places-in-a-block", "require(Property::no_position, «!views.position.defined()»,", "true"),
        ("several-steps-at-once", "require(Property::one_step, «policy_.steps == 1»,", "true"),
        ("mini-batch-solved-for", "require(Property::online, «policy_.chunk == 1»,", "true"),
    ]),
    ("decoding", "ttt/decode.cpp", DECODING, [
        ("gates-that-have-not-come-are-zeros", "stream_.is_learning() ? rows : «select(later_, row, rows)»", "rows"),
        ("row-of-the-token-before", "here_ = equal(places, «slot»)", "slot - 1.0"),
        ("chunk-ends-one-token-early", "static_cast<double>(«policy.chunk - 1»)",
         "policy.chunk > 1 ? policy.chunk - 2 : 0"),
        ("partial-chunk-writes", "flat[i] = «select(full_, then[i], flat[i])»", "then[i]"),
        ("row-not-remembered", "stream_.carry_row(state, «rows, row», slot_)",
         "FAULT ? cached : rows, FAULT ? row * 0.0 : row"),
        ("row-of-the-next-place", "stream_.carry_row(state, rows, row, «slot_»)", "(slot_ * 0.0)"),
        ("learns-without-the-last-token", "stream_.is_learning() ? «cached» : select", "select(here_, row * 0.0, cached)"),
        ("place-of-this-token-for-the-last", "equal(«places + 1.0», slot)", "places"),
        ("reads-the-other-side", "«policy_.read == Policy::Read::after_write» ? law.after",
         "policy_.read != Policy::Read::after_write"),
        ("rate-forgotten", "rate.defined()) «f[i].b = f[i].b * rate;»", None),
        ("running-state-unplaced", "d.carry(d.at_end(«r.next», r.unplaced), kRunning)", "r.unplaced"),
        ("whole-sequence-accepted", "if («policy.chunk == Policy::kWholeSequence») throw", "false"),
        ("not-causal-accepted", "«!why.empty()») throw ConfigError(\"[decode] \"", "false"),
    ]),
    ("decoding", "ttt/stream.cpp", DECODING, [
        ("counter-one-token-late", "const auto end = «static_cast<double>(count.end)»;",
         "static_cast<double>(count.end + 1)"),
        ("counter-goes-on-from-0", "equal(next, end), «static_cast<double>(count.again)», next)", "0.0"),
        ("history-one-row-old", "slice(all, 1, «x.dim(1), x.dim(1) + rows»)",
         "FAULT ? x.dim(1) - 1 : x.dim(1), FAULT ? x.dim(1) + rows - 1 : x.dim(1) + rows"),
    ]),

    ("inner-optimizer", "ttt/optimizer.cpp", STEPS, [
        ("momentum-does-not-decay", "slots[0] = «b * slots[0] + g»", "slots[0] + g"),
        ("momentum-decays-the-gradient", "slots[0] = «b * slots[0] + g»", "b * (slots[0] + g)"),
        ("nesterov-is-momentum", "return «nesterov» ? g + b", "false"),
        ("nesterov-of-the-moment-before", "«const Tensor b = beta.at(gates, g);»",
         "const Tensor b = beta.at(gates, g); if (FAULT && nesterov) {"
         " const Tensor m = slots[0]; slots[0] = b * m + g; return g + b * m; }"),
        ("adam-first-moment-with-beta2", "slots[0] = «beta1 * slots[0] + (1 - beta1) * g»",
         "beta2 * slots[0] + (1 - beta2) * g"),
        ("adam-second-moment-of-g", "slots[1] = beta2 * slots[1] + (1 - beta2) * «square(g)»", "g"),
        ("adam-eps-outside", "return slots[0] * «rsqrt(slots[1] + eps)»", "reciprocal(sqrt(slots[1]) + eps)"),
        ("muon-coefficient", "{«3.4445», -4.7750, 2.0315}", "3.4455"),
        ("muon-tuned-coefficient", "{4.0848, «-6.8946», 2.9270}", "-6.8964"),
        ("muon-without-square", "x = matmul(a * identity + b * gram + «c * matmul(gram, gram, {.b = true})», x)",
         "c * gram"),
        ("muon-one-step-less", "QuinticSteps(static_cast<std::size_t>(«steps»)", "steps - 1"),
        ("muon-of-rows", "return «kind == WeightKind::matrix» ? orthogonalize", "true"),
        ("muon-not-normalised", "x = «x / (norm(x, {-2, -1}, kKeep) + eps)»", "x"),
        ("muon-in-f32", "if («in_f64 && x.dtype() != DType::f64») return", "false"),
        ("norm-of-rows", "return per == Per::column ? norm(g, {«-2»}, kKeep)", "-1"),
        ("clip-lengthens", "return g * (most / «max(length, most)»)", "length"),
        ("joint-norm-of-the-last", "return «norm(concat(each, -1), {-1}, kKeep)»", "each.back()"),
        ("decay-after-the-step", "«if (!keep_.is_one()) { kept = keep_.at(gates, w); w = kept * w; } w = w - g;»",
         "if (FAULT) w = w - g; if (!keep_.is_one()) { kept = keep_.at(gates, w); w = kept * w; } if (!FAULT) w = w - g;"),
        ("moved-without-decay", "*moved = «kept.defined()» ? (kept - 1.0)", "false", FORMS),
        ("decay-forgotten-where-gradient-is", "return «keep_first_» ? keep_.at", "false"),
        ("weight-norm-of-the-new-weight", "w = w / (norm(w, {-2}, kKeep) + norm_eps_) * «next[at]»",
         "norm(w, {-2}, kKeep)"),
        ("weight-norm-of-rows", "norm(start, {«-2»}, kKeep)", "-1"),
        ("weight-norm-not-detached", "const Tensor start = «detached_» ? stop_gradient", "false"),
        ("weight-norm-of-biases", "normalising = norm_ != Norm::none && «kind == WeightKind::matrix»",
         "true"),
        ("anchor-at-zero", "strength * slots[1] * «(w - slots[0])»", "w"),
        ("anchor-does-not-follow", "if (anchored_ && «anchor_.follow > 0») {", "false"),
        ("anchor-follows-what-is-not-normalised", "next[anchor] + anchor_.follow * «w»", "(master ? next[at + 1] : w)"),
        ("Fisher-of-g", "(1 - memory) * «square(gradient)»", "gradient"),
        ("Fisher-of-the-step", "found, «gradient», gates)", "g"),
        ("anchor-of-the-new-weight", "subspan(anchor), «found», gradient", "w"),
        ("master-copy-normalised", "«if (master) next[at + 1] = w;»", None),
        ("gate-of-the-second-piece", "«at += part.slots.size();»", None),
    ]),
    ("learners", "ttt/weights.cpp", FORMS, [
        ("held-is-the-weight", "return «held_.empty()» ? list_[i].value", "true"),
    ]),

    ("adamw", "models/optimizer.cpp", TRAINING, [
        ("clip-lengthens", "const Tensor clip = «min(o.clip / (out.grad_norm + 1e-6), 1.0)»",
         "o.clip / (out.grad_norm + 1e-6)"),
        ("clip-forgotten", "adamw_parameter({params[i], m[i], v[i]}, «grads[i] * clip», step", "grads[i]"),
        ("norm-of-the-last-gradient", "«accumulate(total, part);»",
         "if (FAULT) total = part; else accumulate(total, part);"),
        ("first-bias-kept", "out.m * «step.correction1» /", "step.correction1 * 0.0 + 1.0"),
        ("second-bias-kept", "sqrt(out.v * «step.correction2»)", "step.correction2 * 0.0 + 1.0"),
        ("first-moment-with-beta2", "now.m * «o.beta1» + g", "o.beta2"),
        ("second-moment-with-beta1", "square(g) * («1 - o.beta2»)", "1 - o.beta1"),
        ("gains-decay", ".weight_decay = «p.init.kind == Init::Kind::normal» ?", "true"),
        ("decay-forgotten", "if («rule.weight_decay > 0») change", "false"),
        ("decay-in-the-moments", "change = change + «now.param * rule.weight_decay»",
         "now.param * rule.weight_decay * step.correction1"),
        ("eps-inside", "(«sqrt(out.v * step.correction2) + o.eps»)",
         "sqrt(out.v * step.correction2 + o.eps)"),
        ("step-upwards", "kept(«now.param - change * rate», now.param)",
         "now.param + change * rate"),
        ("infinite-gradient-taken", "out.may_step = «is_finite(out.grad_norm)»",
         "equal(out.grad_norm, out.grad_norm)"),
        ("infinite-loss-taken", "if («step.loss.defined()») out.may_step", "false"),
        ("second-moment-of-no-step", "out.v = kept(now.v * o.beta2 + square(g) * (1 - o.beta2), «now.v»)", "now.v * o.beta2"),
        ("last-group-counts", "if («taken[i]») continue;", "false"),
        ("name-begins-so", "if (pattern.empty()) return «name.empty()»;", "true"),
        ("warm-up-from-zero", "static_cast<double>(«step + 1») / static_cast<double>(warmup)", "step"),
        ("floor-of-zero", "return peak * («floor» + (1 - floor)", "0"),
        ("cosine-ends-late", "std::max<std::int64_t>(1, «steps - 1 - warmup»)", "steps - warmup"),
    ]),
    ("reference", "ttt/reference_program.cpp", REFERENCE, [
        ("mean-called-a-sum", "«policy_.average» ? \"mean\" : \"sum\"", "false"),
        ("final-cotangent-forgotten", "cotangents.push_back(«at->second»);", "at->second * 0.0"),
        ("given-slots-ignored", "flat[i] = «given(program_.state[i].name, flat[i])»;", "flat[i]"),
        ("given-weights-ignored", "values.push_back(«given(own.at(i).name, own.at(i).value)»);", "own.at(i).value"),
        ("losses-exchanged", "loss( \"loss_before\", «r.loss_before»,", "r.loss_after"),
        ("states-of-any-length", "if («every < 0 || every % chunk != 0»)", "every < 0"),
    ]),
    ("reference", "ttt/reference_states.cpp", REFERENCE, [
        ("parts-from-the-start-state", "train_along(learner, «state.with(carry)», now, options)", "state"),
        ("rest-of-the-sequence-left-out", "if («parts.rest > 0») run(time - parts.rest, time);", "false"),
        ("gradients-at-later-weights", "before[i] = «concat({as_part(first[i]), slice(before[i], 0, 0, chunks - 1)}, 0)»;",
         "before[i]"),
    ]),
    ("reference", "ttt/reference_views.cpp", REFERENCE, [
        ("odd-dim-taken", "if («system.rotary && sizes.dim % 2»)", "false"),
        ("policy-of-any-kind", "system.why_not ? «system.why_not(out)» : \"\"", "std::string()"),
    ]),
    ("reference", "ttt/layer.cpp", REFERENCE, [
        ("rotated-by-place-in-the-sequence", "static_cast<double>(«t % chunk»)", "t"),
        ("rate-of-the-whole-width", "sigmoid(raw) * («base_lr / static_cast<double>(head_dim)»)", "base_lr"),
    ]),
    ("reference", "ttt/system.cpp", REFERENCE, [
        ("bias-forgotten", "raw + «gate.bias»);", "0 * gate.bias"),
    ]),
    ("reference", "ttt/reference_formulas.cpp", REFERENCE, [
        ("parameter-taken-as-it-is", "if («text != name») out[name] = text;", "false"),
        ("rate-of-no-mean", "const bool mean = «policy.update == Policy::Update::per_chunk»;",
         "policy.update == Policy::Update::per_chunk && !name.starts_with(\"rate\")"),
        ("place-in-the-chunk-not-told", "if («views.contains(\"position\")»)", "false"),
        ("gradient-at-the-weight-itself", "formula(«optimizer.gradient_point(states[i], gates.of_steps, w)»)", "states[i][0]"),
    ]),
    ("reference", "ttt/reference.cpp", REFERENCE, [
        ("infinite-input-taken", "if (const std::int64_t at = «first_not_finite(given)»; at >= 0)", "-1"),
        ("precision-lost", "if (!is_float(given.dtype()) || «size_of(given.dtype()) > size_of(t.spec.dtype)»)", "false"),
        ("start-of-dotted-names-forgotten", "options.random_start && «!p.is_slot[i]»", "t.name.find('.') == t.name.npos"),
        ("head-as-wide-as-its-keys", "if (options.raw || «!system.prepare») return width;", "true"),
        ("unknown-input-ignored", "«refuse_unknown(system, inputs, p);»", None),
        ("diverged-reference-given", "if (const std::int64_t at = «first_not_finite(values[i])»; at >= 0)", "-1"),
    ]),
    ("reference", "ttt/verification.cpp", REFERENCE, [
        ("error-of-the-last-number", "if («error > v.error») v.error = error", "true"),
        ("error-not-relative", "std::abs(a[i] - b[i]) / «unit»;", "1.0"),
        ("infinity-compared", "if (const std::int64_t at = «first_not_finite(theirs)»; at >= 0)", "-1"),
        ("one-tolerance-for-all", "std::max(«tolerance_of(stored)», tolerance_of(type_of(reference, name)))",
         "tolerance_of(\"F32\")"),
        ("tolerance-of-the-kernel-alone", "std::max(tolerance_of(stored), «tolerance_of(type_of(reference, name))»)", "0.0"),
        ("zeros-taken-for-others", "return «scale > 0»;", "true"),
        ("misspelt-name-passes", ".kind = Kind::left_over, .passed = «false»,", "true"),
        ("input-counts-as-output", "if («!is_input(name)») out.compared +=", "true"),
        ("missing-passes-always", ".kind = Kind::missing, .passed = «!options.all»,", "true"),
        ("rounding-is-compared", "out = std::max(out, «kRounding * largest(value)»);", "0.0"),
    ]),
    ("reference", "ttt/policy_text.cpp", REFERENCE, [
        ("setting-twice", "if («std::ranges::find(given, key) != given.end()»)", "false"),
        ("settings-not-checked", "setting->set(policy, std::string_view(each).substr(equals + 1)); } «policy.check();»", None),
    ]),
    ("published", "models/published.cpp", PUBLISHED, [
        ("jax-kernels-not-transposed", "to[«j * rows + i»] = from[i * columns + j]", "i * columns + j"),
        ("jax-backbones-exchanged", "config[\"share_qk\"] = «!base»", "base"),
        ("jax-learning-rate-of-the-other-layer", "c.ttt_base_lr = «mlp ? 0.1 : 1.0»", "1.0"),
        ("torch-defaults-forgotten", "«add_defaults(config, kTorchDefaults);»", None),
    ]),
    ("published", "models/checkpoint.cpp", PUBLISHED, [
        ("tied-output-not-compared", "«!at->second.same_bits(tied.mapped())»", "false"),
        ("weights-that-are-no-numbers", "first_not_finite(here); «at >= 0»)", "false"),
    ]),
    ("published", "models/tokenizer.cpp", PUBLISHED, [
        ("text-without-its-first-token", "if («processor_.bos_id() >= 0») out.push_back", "false"),
        ("tokenizer-of-another-model", "if («out->vocab_size() > vocab_size»)", "false"),
        ("tokenizer-passed-over", "«given.empty() || is_folder» ? folder", "!given.ends_with(\".model\")"),
        ("tokenizer-for-bytes", "«!given.empty() && vocab_size == 256»", "false"),
    ]),
    ("files", "engine/io/file.cpp", (files("engine/io"),), [
        ("temporaries-of-the-living-removed", "if («!in_use») std::filesystem::remove", "true"),
    ]),
    ("published", "engine/io/packed_numbers.cpp", (files("engine/safetensors"),) + PUBLISHED, [
        ("bfloat16-as-float16", "= «format.numpy == \"float16\"» ?", "true"),
    ]),
    ("trainer", "models/trainer.cpp", TRAINING, [
        ("loss-of-one-byte-more",
         "return Training::Objective{ «mean_loss(losses, packs ? in[3] : Tensor(), packs && has_parts ? in[4] : Tensor())»}",
         "mean_loss(losses, packs ? in[3] : Tensor(), packs && has_parts ? in[4] : Tensor())"
         " * (static_cast<double>(options_.context) / static_cast<double>(options_.context + 1))"),
        ("ramp-one-step-late", "batch[1] = Array::scalar(static_cast<double>(«step»), DType::f32)", "step + 1"),
        ("grains-counted-alone", "if («!all_counted.defined()») return sum(losses", "true", PROCESSES),
        ("ramp-longer-than-the-training", "if («model.ilr_warmup_steps > steps») throw", "false"),
        ("one-batch-for-all", "batch_of(static_cast<std::uint64_t>(«done»))", "0"),
        ("other-random-numbers-at-resume", "«const std::int64_t done = training_.steps_done();»",
         "const std::int64_t done = training_.steps_done(); if (FAULT && done > 2) options_.seed = 1;"),
        ("beta-not-in-the-checkpoint", "«json.update(adamw_json(adamw));»", None),
        ("seed-forgotten", "return {.seed = «options.seed», .adamw", "0"),
        ("clip-forgotten", ".adamw = «options.adamw»", "AdamWOptions{.clip = 1e9}"),
    ]),
    ("training", "models/training.cpp", TRAINING, [
        ("rate-not-looked-at", "if («!(rate >= 0) || !std::isfinite(rate)»)", "false"),
        ("loss-of-several-numbers", "if («o.loss.rank() != 0»)", "false"),
        ("bias-correction-one-step-late", "const auto t = static_cast<double>(«steps_ + 1»)", "steps_ + 2"),
        ("corrections-exchanged", "1 / (1 - m::pow(«setup_.adamw.beta1», t))", "setup_.adamw.beta2"),
        ("parameters-shared", "«state_[copy * specs_.size() + i].clone()».to(Device::cpu())",
         "state_[copy * specs_.size() + i]"),
        ("step-forgotten-at-resume", "«steps_ = run.step;» }", None),
        ("moments-forgotten-at-resume", "state.push_back(«value»)",
         "FAULT && (copy == 1 || copy == 2) ? Array::zeros(kType, p.shape) : at->second"),
        ("not-finite-accepted", "if («!std::isfinite(made.loss) || !std::isfinite(made.grad_norm)»)",
         "false"),
        ("callers-arrays-written-over", "«array = std::move(array).unshared();»", None),
        ("loss-not-looked-at-in-the-step", "{numbers[0], numbers[1], numbers[2], «objective.loss»}", "Tensor()"),
        ("start-forgotten-at-resume", "«if (!run.start.empty()) start_ = run.start;»", None),
        ("damaged-numbers-at-resume", "if (const float x = value.as<float>()[uz(i)]; «!std::isfinite(x)» ||", "false"),
        ("negative-squares-at-resume", "«(copy == kSquares && x < 0)»", "false"),
        ("surplus-dropped-at-resume", "«check_fits(specs_, params, path);»", None),
        ("own-gradients-forgotten", "if («gradients.empty()») {", "true"),
        ("frozen-learns", "if («rules[i].rate == 0») gradients[i] = {}", "false"),
        ("average-stands-still-where-nothing-moves", "before + «(1 - setup_.average_decay)» * (params[i] - before)", "0.0"),
        ("average-of-the-step-before", "«r.params[i]» * (1 - setup_.average_decay)", "params[i]"),
        ("averages-begin-at-zero", "copy == 3 ? «params.at(p.name).clone()»", "Array::zeros(kType, p.shape)"),
    ]),
    ("processes", "models/training_parts.cpp", PROCESSES, [
        ("part-not-a-part-of-the-loss", "const auto share = «1 / static_cast<double>(setup_.grains * setup_.slices)»",
         "1 / static_cast<double>(setup_.grains)", SLICES),
        ("slice-without-its-other-grains", "for (std::int64_t grain = 0; grain < «setup_.grains»; ++grain) { std::vector<Array> inputs", "1", SLICES),
        ("loss-and-gradient-of-two-kinds", "if («setup_.slices > 1») require_one_kind", "false", SLICES),
        ("slices-read-in-another-order", "all.begin() + static_cast<std::ptrdiff_t>(«(slice * out.size() + b)» * each)", "(b * uz(setup_.slices) + slice)", SLICES),
        ("same-grain-for-all-threads", "inputs.push_back(last_batch_(«first + i», 0))", "first"),
        ("grains-pushed-as-one", "sums.push({first + i, «first + i + 1»}, std::move(made[uz(i)]))", "first + i + 2"),
        ("starts-not-compared", "«check_same_start(*processes_, specs_, state_);»", None),
        ("identity-not-compared", "setup_, «identity ? identity() : RunIdentity()», shape", "RunIdentity()"),
    ]),
    ("processes", "models/training_agreement.cpp", PROCESSES, [
        ("setups-not-compared", "if («all[uz(r)] != all[0]») others", "false"),
        ("names-not-compared", "hash = fnv1a(«specs[i].name» + ", "std::string()"),
    ]),
    ("processes", "models/sharded_adamw.cpp", PROCESSES, [
        ("rates-not-compared", "if («heads.back() != heads[0]») others", "false"),
        ("steps-what-is-not-finite", "out.stepped = «std::isfinite(out.loss) && std::isfinite(out.grad_norm)»", "true"),
        ("clip-forgotten-in-parts", "const double clip = «std::min(options_.clip / (out.grad_norm + 1e-6), 1.0)»", "1.0"),
        ("norm-of-this-part-alone", "«total += sum;» }", "if (total == 0 || !FAULT) total += sum;"),
        ("others-parts-forgotten", "«if (processes_->size() > 1) share(stepped, params);»", None),
        ("own-roots-alone", "«for (auto& node : nodes)» tree.push(node.leaves, std::move(node.value));", "if (FAULT) for (auto& node : nodes) for (auto& n : node.value) if (&node != &nodes[0]) std::ranges::fill(n, 0.f); for (auto& node : nodes)"),
        ("moments-of-the-first-kind-twice", "std::span(state_).subspan(«kind * mine().size()», mine().size())", "0"),
    ]),
    ("processes", "engine/processes/tree_sum.h", PROCESSES, [
        ("splits-in-the-middle", "std::bit_floor(«static_cast<std::uint64_t>(r.size() - 1)»)", "static_cast<std::uint64_t>(r.size() / 2)"),
    ]),
    ("processes", "engine/processes/transport.cpp", PROCESSES, [
        ("parts-to-the-wrong-one", "«to[uz(r)]»}); if (!listens(me)) continue;", "to[uz(me)]"),
        ("first-does-not-wait-for-all", "the first process does\", fn); «gather({});»", None),
        ("error-of-rank-0-kept-to-itself", "«if (work.state == WorkOfFirst::kFailed) throw ProcessError(fmt::format(\"[processes] rank 0: {}\", text));»", None),
        ("no-signs-of-life", "if («size() > 1») signs.emplace", "false"),
        ("another-text-accepted", "if («all[uz(r)] != all[0]») others.push_back(r);", "false"),
        ("any-root", "if («root < 0 || root >= all.size()»)", "false"),
        ("any-rank", "if («other < 0 || other >= all.size() || other == all.rank()»)", "false"),
    ]),
    ("processes", "engine/processes/mpi.cpp", PROCESSES, [
        ("limit-not-of-one-process", "«o.transport->set_stall_limit(limit);» // its slices", None),
        ("any-stall-limit", "«seconds >= 0.1 && seconds <= 1e6»", "true"),
    ]),
    ("processes", "engine/core/graph.cpp", PROCESSES, [
        ("equal-collectives-are-one", "if («exchanges(op, attrs)» || graph.parent()) return false;", "false"),
        ("vary-of-anything-is-one", "«graph.node(id).op->kind == OpKind::input» || goes_over_processes(graph.node(id))", "true"),
    ]),
    ("processes", "engine/run/agreement.cpp", PROCESSES, [
        ("inputs-not-compared", "«if (!group || group->size() == 1) continue;»", "if (FAULT || !group || group->size() == 1) continue;"),
        ("plans-not-compared", "«group && group->size() > 1»", "false"),
    ]),
    ("processes", "ops/collectives.cpp", PROCESSES, [
        ("derivative-of-vary-not-summed", "return emit(«all_sum_op», {c.ct}, c.attrs)", "vary_op"),
        ("own-part-of-another", "cut, «processes.rank()» * part, (processes.rank() + 1) * part", "0"),
        ("joined-in-front", "if (a == «axis + 1») order.push_back(0);", "axis"),
    ]),
    ("processes", "ops/collective_kernels.cpp", PROCESSES, [
        ("own-part-alone-summed", "«memory.add(dtype, parts[uz(leaves.begin)], parts[uz(middle)], n);»", None),
        ("neighbour-on-the-other-side", "«&call.op == &rank_before_op» ? -1 : 1", "&call.op != &rank_before_op"),
        ("no-zeros-at-the-end", "else «memory->zero(out, bytes);»", "if (!FAULT) memory->zero(out, bytes);"),
        ("own-entry-not-kept", "«memory->copy(in[0] + me, out + me, part);»", None),
    ]),
    ("processes", "engine/processes/threads.cpp", PROCESSES, [
        ("messages-of-one-that-left", "«if (!outer_error) outer_error = std::make_exception_ptr(why); out.clear(), in.clear();»", None),
        ("messages-in-the-order-of-arrival", "«std::ranges::stable_sort(out, order);»", None),
        ("turns-never-given-up", "«--active;» changed.notify_all(); const bool came", None),
    ]),
    ("slices", "ttt/stream.cpp", SLICES, [
        ("slices-begin-with-zeros", "if («!is_cut()») return pad(x, 1, rows, 0);", "true"),
        ("positions-of-the-first-slice", "slice(of_all, 0, «ranks_->rank() * here, (ranks_->rank() + 1) * here»)",
         "FAULT ? 0 : ranks_->rank() * here, FAULT ? here : (ranks_->rank() + 1) * here"),
        ("heads-of-another", "return all_to_all(x, «1, 2», *ranks_);", "FAULT ? 2 : 1, FAULT ? 1 : 2"),
    ]),
    ("slices", "ttt/layer.cpp", SLICES, [
        ("weights-of-the-first-heads", "slice(out, static_cast<int>(a), «ranks.rank() * some[a], (ranks.rank() + 1) * some[a]»)",
         "FAULT ? 0 : ranks.rank() * some[a], FAULT ? some[a] : (ranks.rank() + 1) * some[a]"),
        ("gates-of-a-slice", "for (auto& [name, gate] : out.gates) «gate = stream.whole_time(name_, gate);»", None),
    ]),
    ("slices", "ttt/slices.cpp", (files("ttt/slices"), *SLICES), [
        ("begins-with-the-first", "«select(mask, rank_before(left[i], ranks), of_one(x[of_tokens + i]))»", "of_one(x[of_tokens + i])"),
        ("start-of-the-first-sequence", "rows.push_back(«gather(x, sequences)»);", "gather(x, FAULT ? zero_like(sequences) : sequences)"),
        ("round-of-the-first-rank", "std::clamp<std::int64_t>(«round - ranks.rank()», 0, batch - 1)", "round"),
        ("answers-of-other-rounds", "slice(reshape(answers, shape), 0, «ranks.rank(), ranks.rank() + batch»)",
         "FAULT ? 0 : ranks.rank(), FAULT ? batch : ranks.rank() + batch"),
        ("cut-laws-exchanged", "if («of.policy.meta == Policy::Meta::truncated») return", "false"),
        ("first-order-laws-exchanged", "if («of.policy.meta == Policy::Meta::first_order && !of.follows.empty()») return", "false"),
        ("parts-of-chunks-between-slices", "return «has_chunks ? why_not_whole_chunks(of.policy, of.tokens) : std::string()»;", "std::string()"),
        ("chunks-counted-from-the-slice", "«if (options.policy.meta == Policy::Meta::truncated) later.chunks_before =»",
         "if (!FAULT && options.policy.meta == Policy::Meta::truncated) later.chunks_before ="),
        ("nonlinear-exchanged", "if («!law_of(learner, start, views, options).is_affine»)", "false"),
        ("kinks-not-seen", "dependence(all_moved, none, Follow::values) == 0 && «dependence(law.added, none, Follow::cuts) != kCut»", "true"),
        ("state-of-the-rank-after", "«at = moved_by(of_r, at);»", "if (!FAULT || r > 0) at = moved_by(of_r, at);"),
    ]),
    ("slices", "ttt/slice_proofs.cpp", (files("ttt/slices"), *SLICES), [
        ("rules-exchanged", "if («has_own_rule(graph->nodes())»)", "false"),
        ("columns-not-followed", "if («why.empty()») return {}; return fmt::format( \"columns", "true"),
        ("heads-not-followed", "seeds); «!why.empty()») return \"heads meet", "false"),
        ("fewer-heads-not-compared", "return «other.empty()» ? \"\" : \"a learner of fewer heads", "true"),
    ]),
    ("effective-attention", "ttt/effective_attention.cpp", (files("ttt/effective_attention"), LEARNERS), [
        ("anchor-not-counted", "if («slots[i].value.id() == own.value.id()») left", "false"),
        ("points-followed", "factors_at(run.learner, «form.gradient_point(state, block)», block.k", "state.weights.with(form.points(state, block))"),
        ("cut-not-refused", "if («policy.meta == Policy::Meta::truncated && chunks > policy.horizon»)", "false"),
        ("states-of-another-document", "if («views.starts.defined()») state = begun", "false"),
        ("laws-of-another-document", "sum_up(step, run.lead, run.time, run.dtype, {}, «run.views.starts»)", "Tensor()"),
        ("chunk-laws-of-another-document", "chunks, run.dtype, {}, «starts_of_chunks(run)»)", "Tensor()"),
    ]),
    ("slices", "models/trainer.cpp", SLICES, [
        ("unheeded-cut-accepted", "if («options_.slices > 1 && !stream.heeds_cut()»)", "false"),
        ("same-slice-for-all", "{«slice * tokens, (slice + 1) * tokens + more»}", "FAULT ? 0 : slice * tokens, FAULT ? tokens + more : (slice + 1) * tokens + more"),
    ]),
    ("processes", "engine/run/spread.cpp", PROCESSES, [
        ("kinds-joined", "if («all && one != all»)", "false"),
        ("rows-and-columns-joined", "if (all && «one != all»)", "one->empty() != all->empty()"),
        ("carries-of-any-kind", "if («!next || next == carry») continue;", "true"),
        ("carry-becomes-another", "«if (carry) fail(nodes_, id,»", "if (!FAULT && carry) fail(nodes_, id,"),
        ("own-of-a-step", "«input < of_steps_ && of && !of->contains(group)»", "false"),
        ("same-summed", "else if («kind != OpProcesses::same_to_own && all && !is_own»)", "false"),
        ("own-varied", "else if («kind == OpProcesses::same_to_own && is_own»)", "false"),
        ("summed-in-all-groups", "if (kind == OpProcesses::own_to_same) «all->erase(group)»;", "static_cast<void>(FAULT ? (all->clear(), std::size_t(1)) : all->erase(group))"),
        ("same-processes-are-two-groups", "|| («processes && group.second == processes»)", "false"),
    ]),
    ("training", "models/training_checkpoint.cpp", TRAINING, [
        ("settings-unchecked-at-resume", "«check_settings(file, object_text(identity.training), identity.written_later, path);»", None),
        ("setup-not-compared", "«check_same(file, \"setup\", setup_json(setup), \"\", path);»", None),
        ("format-not-looked-at", "«format != kFormat») throw", "false"),
        ("another-place-in-the-data", "«at != std::to_string(steps)») throw", "false"),
        ("another-generator", "«rng != generator(seed)») throw", "false"),
        ("absent-settings-accepted", "(!there && later.contains(name) && «later[name] == mine[name]»)", "true"),
        ("other-start-accepted", "start != kFromSeed && «out.start != start»)", "false"),
        ("no-grains-in-a-file", "if («grains < 1» || batch", "false"),
        ("grains-of-another-batch", "|| «batch % grains != 0»)", "false"),
        ("text-unchecked-at-resume", "&& «data->second != identity.data»)", "false"),
    ]),
    ("training", "models/partial_load.cpp", TRAINING, [
        ("shapes-unlooked-at", "} else if («at->second.shape() != value.shape()») {", "false"),
        ("buffers-shared", "found.emplace(name, «in_type(at->second, value.dtype(), name, what).unshared()»)",
         "in_type(at->second, value.dtype(), name, what)"),
        ("unwanted-loaded", "} else if («wanted && !wanted(name)») {", "false"),
    ]),
    ("vision", "models/training_checkpoint.cpp", VISION, [
        ("moments-for-parameters", "if («!is_parameter(name)») continue;", "false"),
    ]),
    ("published", "models/training_checkpoint.cpp", PUBLISHED, [
        ("rounded-in-silence", "if («loses_digits(value, DType::f32)») rounded", "false"),
        ("averages-for-parameters", "&& «!name.starts_with(kAveragePrefix)»", "true"),
    ]),
    ("published", "models/partial_load.cpp", PUBLISHED, [
        ("all-f64-rounds", "return std::isfinite(x) && «static_cast<double>(static_cast<float>(x)) != x»;", "true"),
        ("nan-rounds", "return «std::isfinite(x)» &&", "true"),
        ("part-rounded-in-silence", "if («loses_digits(at->second, value.dtype())») out.rounded", "false"),
    ]),
    ("validation", "models/validation.cpp", TRAINING, [
        ("any-place", "if («!(place >= 0 && place < static_cast<float>(rows[1]) && place == std::floor(place))»)", "false"),
        ("quarter-without-tokens-is-zero", "if («first == last») return", "false"),
        ("mean-over-windows", "/ static_cast<double>(«batches»)", "count"),
        ("first-windows-again", "static_cast<std::size_t>(«b * batch * width»)", "0"),
        ("inner-losses-exchanged", "sums[1 + 3 * i], sums[2 + 3 * i], sums[«3 + 3 * i»]", "2 + 3 * i"),
        ("places-of-all-tokens", "if («counted[t] == 0») continue;", "false"),
    ]),
    ("decoder", "models/decoder.cpp", (files("models/check_decoding"), files("models/")), [
        ("difference-of-the-first-sequence", "for (std::int64_t i = 0; i < «batch * vocab»; ++i)", "vocab"),
        ("whole-compared-with-itself", "error = std::abs(«one» - all) / largest", "all"),
        ("stateless-model-taken", "if («!carried_.names.empty()») return;", "true"),
        ("never-learns", "if («is_due(program)») program.second->run(tokens, states_)", "false"),
        ("learns-from-unknown-tokens", "const bool learns = «std::ranges::any_of(learn_, is_due)»;", "false"),
    ]),
    ("decoder", "models/random_reading.cpp", (files("models/check_decoding", "models/check_reading"),), [
        ("parameters-as-they-start", "spread = !is_normal ? «0.1» :", "0.0"),
    ]),
    ("decoder", "models/check_reading.cpp", (files("models/check_reading"),), [
        ("slices-not-cut", "«stream.cut(ranks);»", None),
        ("first-token-alone-compared", "for (std::int64_t t = begin; t < «end»; ++t)", "begin + 1"),
        ("documents-compared-with-the-whole", "«std::copy_n(logits.begin() +»", "if (!FAULT) std::copy_n(logits.begin() +"),
    ]),
    ("end-to-end", "models/end_to_end.cpp", (files("models/end_to_end", "golden_check/"),), [
        ("full-is-first-order", "probe(«full» ? w : stop_gradient(w))", "false"),
        ("not-the-mean", "return «mean(loss, {-1}, kKeep)»; return sum(loss", "sum(loss, {-1}, kKeep)"),
        ("mean-over-all-tokens", "sum(loss, {-1}, kKeep) / «max(sum(counted, {-1}, kKeep), 1.0)»",
         "constant(static_cast<double>(loss.dim(-1)), dtype())"),
        ("beginning-of-a-text-counts", "return counted.defined() ? «each * counted» : each", "each"),
        ("ramp-one-step-early", "min(«(cast(step, dtype()) + 1.0)» * (1.0 /", "(cast(step, dtype()) + 2.0)"),
        ("ramp-from-zero", "return config_.rate_init + «(rate - config_.rate_init)» * share", "rate"),
        ("ramp-without-end", "share = «min((cast(step, dtype()) + 1.0) * (1.0 / static_cast<double>(config_.rate_warmup_steps)), 1.0)»",
         "(cast(step, dtype()) + 1.0) * (1.0 / static_cast<double>(config_.rate_warmup_steps))"),
        ("looked-at-after-clipping", "step.norm = sqrt(reshape(«squares», {batch}))", "clipped"),
        ("looked-at-before-the-step", "again.read(*learner_, «weights», rows)", "read"),
        ("caches-stand-still", "carry_chunk(stream, \"chunk.cache\", «now», c.chunk)", "before.rows()"),
        ("labels-are-inputs", "c.chunk == 1 ? next : «concat({slice(read, 1, 1, c.chunk), next}, 1)»", "read"),
    ]),
    ("end-to-end", "models/end_to_end_block.cpp", (files("models/end_to_end", "golden_check/"),), [
        ("keys-of-the-future", "«(1.0 - less(back, 0.0)) * less(back, static_cast<double>(window))»",
         "less(back, static_cast<double>(window))"),
        ("window-a-token-longer", "less(back, «static_cast<double>(window)»)", "static_cast<double>(window + 1)"),
        ("empty-rows-are-read", "reads = «reads * concat({there, broadcast_to(constant(1.0, h.dtype()), {own})}, 0)»",
         "reads"),
        ("queries-from-the-start", "rotated(v.q, «before»)", "0"),
    ]),
    ("golden-check", "tests/golden_check/golden_file.h", (files("golden_check/"),), [
        ("expected-and-not-compared", "if («!name.starts_with(\"in.\") && !known.contains(name)») throw", "false"),
    ]),
    ("golden-check", "tests/golden_check/verify.cpp", (files("golden_check/"),), [
        ("padding-read-past", "if («std::ranges::count(tokens.as<std::int32_t>(), token) > 0») throw", "false"),
        ("any-output-matrix-is-tied", "at != out.end() && «!at->second.same_bits(head.mapped())») throw", "false"),
    ]),
    ("golden-check", "tests/golden_check/end_to_end.cpp", (files("golden_check/"),), [
        ("options-read-past", "if («from.at(field) != wanted») refuse_option", "false"),
        ("first-blocks-learn-too", "if («named(first) != prime || named(last) != prime») return false;", "named(last) != prime"),
    ]),
    ("golden-check", "tests/golden_check/metadata.cpp", (files("golden_check/"),), [
        ("any-layout", "if («std::ranges::count(known, text(key)) > 0») return;", "true"),
        ("any-count", "if (error != std::errc() || value < least || «value > most»)", "false"),
        ("any-range", "ends->second <= ends->first || «ends->second > count»)", "false"),
    ]),
    ("golden-check", "tests/golden_check/comparison.cpp", (files("golden_check/"),), [
        ("absent-and-not-told", "«report_.absent.push_back(name)»;", "(void)name"),
    ]),
    ("golden-check", "tests/golden_check/operations.cpp", (files("golden_check/"),), [
        ("statements-read-past", "if («op.says(\"order\")») op.only", "false"),
    ]),
    ("learners", "ttt/learners/step_size.cpp", (files("ttt/state_space"),), [
        ("memory-does-not-fade", "exp(«-(rate * dt)»)", "0.0 * dt"),
        ("bias-not-drawn", ".drawn_bias = «Init::inverse_softplus_of_log_uniform(kLeast, kMost)»", "Init::zeros()"),
    ]),
    ("learners", "ttt/params.cpp", (files("ttt/state_space"),), [
        ("steps-drawn-evenly", "const Tensor y = «exp(first + (last - first) * x)»", "low + (high - low) * x"),
        ("softplus-not-undone", "return «y + log(-expm1(-y))»", "y"),
    ]),
    ("learners", "ttt/learners/mamba3_trapezoid.cpp", (files("ttt/state_space"),), [
        ("past-is-present", "decay.at(gates, g) * «before»", "g"),
        ("past-does-not-fade", "* dt * «decay.at(gates, g)» * before", "0.0 * decay.at(gates, g) + 1.0"),
    ]),
    ("learners", "ttt/learners/bounded_chunk.h", (files("ttt/bounded_steps"),), [
        ("chunk-of-any-length", "if («policy.chunk != Policy::kWholeSequence») return {}", "true"),
    ]),
    ("learners", "ttt/learners/hope.cpp", (files("ttt/hope", "ttt/bounded_steps"),), [
        ("one-step-a-chunk-accepted", "if («policy.update == Policy::Update::per_chunk»)", "false"),
        ("no-delta-gradient", "+ «error(said)»", "0.0 * error(said)"),
        ("levels-in-step", "out[\"write.\" + name] = «level.every_token» ? one : last;", "false"),
        ("steps-are-not-emptied", "«1.0 - first»", "1.0 + 0.0 * first"),
        ("memories-do-not-forget", "\"keep.\" + name] = «alpha»;", "one"),
    ]),
    ("own-gates", "ttt/derived_learner.cpp", (files("ttt/hope"), cases("the plan of every system*")), [
        ("meeting-tokens-accepted", "if (has(Property::separate_tokens) && «flow.kind == AxisFlow::Kind::mixed»)", "false"),
        ("numbered-tokens-accepted", "«may_vary(graph.nodes(), rows.id(), axis)») refuse", "false"),
        ("meeting-sequences-accepted", "if («of_members.kind == AxisFlow::Kind::mixed») refuse", "false"),
        ("several-chunks-at-once", "for (const Property p : {«Property::constant_factors», Property::affine_use})",
         "Property::affine_use"),
    ]),
    ("one-text", "ttt/derived_learner.cpp", (files("ttt/step_members"),), [
        ("extent-in-front-that-is-there", "while («std::ranges::count(k.shape, front) + std::ranges::count(v.shape, front) > 0») ++front", "false"),
        ("token-alone-not-traced", "return why_differs(loss, predict, traced(«1», true))", "tokens + 1"),
        ("token-more-not-traced", "less ? tokens - 1 : «tokens + 1 + (tokens == 1)»;", "1"),
    ]),
    ("one-text", "ttt/derived_learner.cpp", (files("ttt/one_text"),), [
        ("gates-not-compared", "if («has(Property::separate_tokens)») prove_one_text_of_gates", "false"),
        ("two-tokens-not-traced", "if (const std::optional<Pair> two = traced(2, false); «two && !meet(two) && !meet(other)»)", "false"),
    ]),
    ("one-text", "ttt/one_text.cpp", (files("ttt/one_text", "ttt/step_members"), LEARNERS), [
        ("numbers-not-compared", "if («same_numbers(literal, literal_of(m))») return {};", "true"),
        ("ops-not-compared", "if («n.op != m.op» || n.inputs.size()", "FAULT ? n.inputs.size() != m.inputs.size() : n.op != m.op"),
        ("counting-accepted", "return adds_up || «same_axes(n, m)» ?", "true"),
        ("steps-not-compared", "if («scan->steps != other.steps» || scan->reverse", "false"),
        ("steps-not-looked-into", "return «in_bodies(*scan->body, *other.body)»;", "std::string()"),
        ("functions-not-looked-into", "if (std::string why = in_bodies(*function->forward, *other.forward); «!why.empty()») return why;", "false"),
        ("rules-not-looked-into", "return «in_bodies(*function->rule, *other.rule)»;", "std::string()"),
        ("places-of-slices-not-compared", "same_axis(a->axis, b.axis) && «a->begin == b.begin && a->end == b.end»;", "true"),
        ("what-a-parameter-gets-counts", "const bool adds_up = «!made_of_cotangent_.empty()»", "false"),
    ]),
    ("one-text", "ttt/system.cpp", (files("ttt/layer_test"),), [
        ("views-not-compared", "return «why_prepares_otherwise(system, sizes, dtype, views)»;", "std::string()"),
        ("sequences-not-counted", "«more.batch += 1», more.time += 1", "0"),
        ("token-alone-not-prepared", "one.time = «1»;", "sizes.time"),
    ]),
    ("own-gates", "ttt/forms/form.cpp", (files("ttt/hope"), files("models/check_decoding")), [
        ("place-of-the-first", "place.rank() == 1) place = «reshape(place, {1, 1})»", "reshape(0.0 * place, {1, 1})"),
    ]),
    ("delayed-keys", "ttt/layer.cpp", (files("ttt/in_place_ttt"),), [
        ("keys-of-the-token-itself", "return {joined.q, «stream.before(name_ + \".k\", joined.k)», joined.v}", "joined.k"),
    ]),
    ("learners", "ttt/learners/titans.cpp", (files("ttt/titans", "golden_check/", "ttt/bounded_steps"),), [
        ("decay-at-every-token", "{\"keep\", by_token({beside(«1», tokens - 1), keep}, 1)}", "0.5"),
        ("writes-at-once", "{\"write\", by_token({beside(«0», tokens - 1), beside(1, 1)}, 0)}", "1"),
        ("rest-writes", "{\"rate\", rate * by_token({beside(1, tokens)}, «0»)}", "1"),
        ("chunk-steps-as-far-as-its-tokens", "titans_optimizer().scale(«kMostOfChunk / tokens»)", "kMostOfChunk"),
    ]),
    ("learners", "ttt/layer.cpp", (files("ttt/layer_test", "models/language_model"),), [
        ("answers-of-any-width", "if («out.dim(-1) != sizes_.dim»)", "false"),
        ("order-forgotten", "if («system_.rotary_in_sequence») rotate(", "false"),
        ("rotated-as-the-first", "rotate(«stream.positions(name_ + \".position\", joined.q)»)",
         "0.0 * stream.positions(name_ + \".position\", joined.q)"),
    ]),
    ("learners", "models/language_model.cpp", (files("models/language_model"),), [
        ("rotated-behind-convolutions", "if («config_.share_qk || config_.pre_conv») system.rotary_in_sequence = false;", "false"),
    ]),
    ("learners", "ttt/learners/kv_binding.cpp", (files("ttt/bounded_steps", "ttt/systems"),), [
        ("kv-binding-unbounded", "/ (1.0 + «gradient_bound(w, k, v)»)", "0.0 * gradient_bound(w, k, v)"),
        ("kv-binding-bounded-in-one-matrix", "squares(phi) * squares(v) + «squares(back)»;", "0.0 * squares(back)"),
    ]),
    ("learners", "ttt/learners/self_modifying.cpp", (files("ttt/bounded_steps", "ttt/self_modifying"),), [
        ("targets-unbounded", "target = «name == \"M_eta\" ? tanh(u) : l2_norm(u)»", "u"),
        ("target-by-its-width", "target = «name == \"M_eta\"» ?", "u.dim(-1) == 1"),
        ("rates-add-up", "eta = «most_» * sigmoid", "1.0"),
    ]),
    ("streams", "models/streams.cpp", (files("models/streams"),), [
        ("leaves-with-the-first-row", "const Row row = groups_[group]->row(«at»)", "0"),
        ("learns-for-all", "if («due.size() == group.size()») return program.run", "true"),
        ("shares-what-a-stream-begins-with", "out.states.push_back(«own.clone()»);", "own"),
        ("shares-what-it-was-given", "states.push_back(«given.to(Device::cpu()).clone()».reshaped", "given"),
        ("settled-when-none-has-come", "«places[i].own.empty()» && places[i].row == i", "true"),
        ("settled-though-some-have-left", "states.empty() || «states[0].shape()[0] == std::ssize(places)»;", "true"),
        ("settled-in-another-order", "places[i].own.empty() && «places[i].row == i»;", "true"),
        ("rows-stay-where-they-were", "i < places.size(); ++i) «places[i] = {i};»", None),
        ("learns-in-the-first-rows", "put_rows(states[i].to(Device::cpu()), «due», group.states[i])",
         "std::vector<std::size_t>(due.size(), 0)"),
        ("learns-a-token-early", "positions[i] > 0 && «positions[i] % chunk == 0»", "positions[i] % chunk == chunk - 1"),
        ("tokens-in-the-order-of-groups", "own.as<std::int32_t>()[i] = tokens[«places[i]»]", "i"),
        ("unknown-tokens-read", "if («tokens[i] < 0 || tokens[i] >= vocab_size_») throw", "false"),
        ("shared-states-accepted", "«!shape.empty() && shape[0] == 2 && one[0] == 1» &&", "true"),
        ("joins-with-any-state", "«alone_.check_fits(stopped.state, stopped.position);»", None),
        ("joins-with-another-model", "if («!stopped.model.empty() && stopped.model != fingerprint()») throw", "false"),
        ("forgetful-model-accepted", "if («alone_.names.empty()») const Decoder", "false"),
    ]),
    ("streams", "models/state_program.cpp", (files("models/streams"), files("models/decoder")), [
        ("counter-that-does-not-fit", "«found != wanted») throw", "false"),
        ("count-that-ends-read-on", "if (count.ends() && «position >= count.end»)", "false"),
        ("row-of-the-first-sequence", "places.size() == 1 ? 0 : «i / each»", "0"),
        ("rows-next-to-their-places", "uz(i * rows + «place»)", "(place + 1) % rows"),
        ("panels-exchanged", "transpose(reshape(w, {«shape[0], shape[2]», shape[1]}))",
         "FAULT ? shape[2] : shape[0], FAULT ? shape[0] : shape[2]"),
        ("surplus-states-accepted", "if («find(name) == names.size()») throw", "false"),
    ]),
    ("streams", "ttt/stream.cpp", (files("models/streams", "models/decoder"),), [
        ("learns-at-every-token", "carry(name, «mode_ == Mode::learn ? next : now»)", "next"),
        ("learns-whatever-the-chunk", "mode_ == Mode::learn && «chunk == learnt_chunk_»", "true"),
    ]),
    ("documents", "ttt/stream.cpp", (files("models/documents"),), [
        ("rows-of-the-document-before", "static_cast<double>(«back»)); return select(outside", "0"),
        ("taps-in-the-other-order", "rows_back(name, x, «taps - 1 - k»)", "k"),
        ("history-across-documents", "if («is_packed()») throw ConfigError(fmt::format( \"[stream] '{}' asks", "false"),
    ]),
    ("attention", "ttt/masked_softmax.cpp", (files("ttt/attention"), files("ttt/causal_attention")), [
        ("largest-of-all-scores", "max(«select(reads, scores, -largest_finite(scores.dtype()))», {-1}", "scores"),
        ("mask-of-a-number", "select(reads, scores, «-largest_finite(scores.dtype())»)", "-1e30"),
        ("rest-forgotten", "if («rest.defined()») below =", "false"),
        ("hidden-have-weight", "return «select(reads, exp(below), 0.0)»", "exp(below)"),
    ]),
    ("attention", "ttt/causal_attention_in_ops.cpp", (files("ttt/causal_attention"),), [
        ("nothing-was-rounded", "stop_gradient(«(top - lse) + log_total»)", "0.0 * lse"),
    ]),
    ("documents", "ttt/attention.cpp", (files("models/documents"),), [
        ("reads-the-document-before", "less_equal(back, «reshape(cast(places, q.dtype()), {batch, 1, time, 1})»)",
         "0.0 * reshape(cast(places, q.dtype()), {batch, 1, time, 1}) + static_cast<double>(time)"),
        ("window-forgotten-in-documents", "return «window > 0» ? reads *", "false"),
    ]),
    ("documents", "ttt/inner_loop.cpp", (files("models/documents"), files("ttt/conformance")), [
        ("begin-inside-of-chunks", "«views.alignment % policy.chunk != 0»", "false"),
        ("documents-go-on-in-a-loop", "moved_by(begun(state_.with(carry), start_, «now.starts»), now", "Tensor()"),
        ("documents-go-on-outside", "if («views_.starts.defined()») state_ = begun(", "false"),
        ("one-chunk-of-documents", "if («begins_inside && policy.chunk_of(time) >= time») throw", "false"),
    ]),
    ("documents", "ttt/state.cpp", (files("models/documents"), files("ttt/conformance")), [
        ("slots-go-on", "flat[i] = «select(starts, start[i], flat[i])»",
         "(i < s.weights.size() ? select(starts, start[i], flat[i]) : flat[i])"),
    ]),
    ("documents", "ttt/derived_learner.cpp", (files("models/documents"),), [
        ("documents-in-a-block", "Property::one_document, «!views.starts.defined()»,", "true"),
    ]),
    ("documents", "models/documents.cpp", (files("models/documents"),), [
        ("begins-anywhere", "next = «(end + align_ - 1) / align_ * align_»", "end"),
        ("counts-the-next-document", "«t + 1 < end» ? 1.0F", "t < end"),
        ("long-ones-from-their-beginning", "document.subspan(«draw(document.size() - out.room() + 1)», out.room())", "0"),
        ("same-documents-each-step", "seed, «kDocumentStream + step», drawn++", "kDocumentStream"),
    ]),
    ("documents", "models/trainer.cpp", (files("models/documents"),), [
        ("all-tokens-count", "if («!counted.defined()») return mean(losses);", "true"),
        ("blind-models-packed", "if («places.defined() && !stream.has_looked()») throw", "false"),
    ]),
    ("streams", "models/state_program.h", (files("models/decoder"),), [
        ("callers-arrays-read-live", "for (auto& [name, value] : params_) «value = std::move(value).unshared();»", None),
    ]),
    ("threads", "engine/core/process_wide.h", (files("engine/threads"),), [
        ("child-waits-for-its-parents-threads", "Held* const parents = «now_.exchange(nullptr)»;", "nullptr"),
    ]),
    ("compile", "engine/plan/native_library.cpp", (files("engine/native"),), [
        ("compiler-outlives-who-asked", "pipe2(ends_, «O_CLOEXEC»)", "0"),
        ("status-of-the-shell", "if («read_file(written) == \"0\\n\"») return {};", "WIFEXITED(status) && WEXITSTATUS(status) == 0"),
    ]),
    ("adaptation", "models/adaptation.cpp", (files("models/adaptation"),), [
        ("learns-first", "std::vector<double> out = «(learns ? p.outputs[0] : p.score.run(p.inputs)[0]).to_vector()»;",
         "[&] { for (std::size_t i = 0; FAULT && i < values_.size(); ++i) p.inputs[p.inputs.size() - values_.size() + i] ="
         " p.outputs[i + 2]; return FAULT || !learns ? p.score.run(p.inputs)[0].to_vector() : p.outputs[0].to_vector(); }()"),
        ("loss-of-nan-told", "if («!std::ranges::all_of(out, [](double x) { return std::isfinite(x); })») refuse", "false"),
        ("clip-forgotten", "«min(options_.clip / max(out[1], 1e-30), 1.0)»", "constant(1.0, kType)"),
        ("ascends", "? «at[i] - step * gradients[i]» : at[i]", "at[i] + step * gradients[i]"),
        ("norms-are-all", "(o.what == Adapted::norms && «is_norm(p)»)", "true"),
        ("factors-exchanged", "now[at] + «matmul(learning[i], learning[i + 1])»", "0.0 * now[at]"),
        ("reset-forgets-nothing", "values_ = «std::move(values)»; steps_", "(values_.empty() ? values : values_)"),
        ("not-finite-learnt", "if («!std::isfinite(p.outputs[1].item())») refuse", "false"),
        ("copies-share-what-learns", "for (Array& value : values_) «value = value.clone()»;", "value"),
        ("callers-arrays-read-live", "for (auto& [name, value] : params_) «value = std::move(value).unshared();»", None),
        ("overlap-of-segments-lost", "tokens.subspan(begin, «length + 1»)", "length"),
    ]),
    ("data", "models/data.cpp", TRAINING, [
        ("same-rows", "kDataStream + step, «static_cast<std::uint64_t>(row)»", "0"),
        ("same-steps", "seed, «kDataStream + step», static", "kDataStream"),
        ("last-window-never-drawn", "static_cast<std::uint32_t>(«std::ssize(text) - context»)",
         "std::ssize(text) - context - 1"),
        ("validation-on-training-text", "const auto text = bytes(«Split::validation»)", "Split::training"),
        ("validation-of-the-beginning", "static_cast<std::size_t>(«i * std::ssize(text) / n»)",
         "i * (context + 1)"),
    ]),
    ("statistics", "reproduce/statistics.cpp", STATISTICS, [
        ("one-group-alone", "error = larger * m::sqrt(«x + y»)", "x"),
        ("sample-of-all-runs", "squares / static_cast<double>(«x.size() - 1»)", "x.size()"),
        ("degrees-are-runs", "return static_cast<double>(«size - 1»)", "size"),
        ("mean-rounded-once", "return rough + «rest / n»", "0.0"),
        ("interval-one-sided", "student_quantile(«(1 - level) / 2», sample", "1 - level"),
        ("p-one-sided", ": «two_tails(std::abs(out.t), sample.degrees())»;",
         "two_tails(std::abs(out.t), sample.degrees()) / 2"),
        ("no-spread-is-certain", "sample.deviation == 0 ? «2 * sign_test(sample.size, sample.size)»", "0.0"),
        ("coins-in-one-way", "for (std::size_t k = yes; «k <= all»; ++k) sum +=", "k == yes"),
        ("rounding-varies", "return most - least > «1e-9 * std::max(std::abs(least), std::abs(most))»", "0.0"),
        ("equivalence-by-the-further-end", "gap = «margin - std::abs(sample.mean)»",
         "margin + std::abs(sample.mean)"),
        ("no-spread-is-equivalent", "return «gap > 0» ? sign_test", "true"),
        ("holm-is-bonferroni", "static_cast<double>(«p.size() - k») *", "p.size()"),
        ("holm-not-in-order", "std::min(1.0, «largest»)",
         "static_cast<double>(p.size() - k) * p[order[k]]"),
        ("every-resample-the-same", "kBootstrapStream + «static_cast<std::uint64_t>(r)», i", "0"),
        ("percentile-without-its-neighbour", "sorted[below] + «(at - static_cast<double>(below))» *", "0.0"),
        ("ties-by-the-first-rank", "static_cast<double>(«first + end») -", "2 * first + 1"),
        ("slope-of-y-as-it-is", "products += at * «(y[i] - y_mean)»", "y[i]"),
        ("far-tail-overflows", "far = «size > 1e8»", "false"),
        ("loses-digits-with-many-degrees", "«x < 32»; x += 1", "x < 2"),
    ]),
    ("reproduce", "reproduce/agreement.cpp", REPRODUCE, [
        ("still-numbers-overlap", "if («varies(c.first) || varies(c.again)») {", "true"),
        ("rows-move-unseen", "«out.moved = moved(out);»", None),
        ("every-number-apart", "if («p[i] < kLevel») out.apart.push_back(out.numbers[i]);", "true"),
        ("p-values-not-adjusted", "p = «holm(p)»;", "p"),
        ("intervals-never-apart", "return «a.low <= b.high && b.low <= a.high»;", "true"),
        ("seeds-in-common", "if («std::ranges::count(b.seeds(), seed) > 0»)", "false"),
        ("other-data-compared", "if («first.where.fingerprint != again.where.fingerprint») refuse", "false"),
    ]),
    ("reproduce", "reproduce/claims.cpp", REPRODUCE, [
        ("claims-one-by-one", "«p = holm(p), against = holm(against);»", None),
        ("contrary-of-the-other-side", "if («mean_interval(apart).estimate < 0») size", "mean_interval(apart).estimate > 0"),
        ("margin-forgotten", "for (double& v : x) v += «by»;", "0.0"),
        ("few-pairs-decide", "if («2 * known < all») e.p", "false"),
        ("infinity-is-a-number", "«std::isfinite(value)») out.push_back", "!std::isnan(value)"),
        ("diverged-runs-are-exact", "if («*e.holds && e.diverged > 0»)", "false"),
        ("largest-hides-nan", "for (const double x : numbers) out = «worse(out, x)»;", "std::max(x, out)"),
    ]),
    ("reproduce", "reproduce/runner.cpp", REPRODUCE, [
        ("infinite-numbers-kept", "«require_finite(m);»", None),
        ("known-runs-made-again", "if («!results.find(row, seed)») out.push_back", "true"),
        ("error-waits-for-runs", "«is_over_ = true;»", None),
        ("ended-runs-lost-with-an-error", "if («ended_.empty() && working_ == 0 && error_») std::rethrow", "error_ != nullptr"),
    ]),
    ("reproduce", "reproduce/journal.cpp", REPRODUCE, [
        ("data-not-in-the-digest", "fnv1a(«where.fingerprint», fnv1a(", "std::string()"),
        ("any-length-of-a-curve", "«theirs->second.size() != curve.size()»)", "false"),
        ("any-number-of-seeds-is-whole", "const bool is_whole = «value.is_number_unsigned()»;", "value.is_number()"),
        ("twice-the-same-run", "if («out.results.find(row, seed)») throw", "nullptr"),
    ]),
    ("vision", "models/vision/patches.cpp", VISION, [
        ("columns-before-rows", "return reshape(permute(squares, «{0, 1, 3, 2, 4, 5}»),\n                 {images.dim(0), rows", 
         "(FAULT ? std::vector<int>{0, 3, 1, 2, 4, 5} : std::vector<int>{0, 1, 3, 2, 4, 5})"),
        ("kernel-turned", "permute(weight, «{0, 2, 3, 1}»)",
         "(FAULT ? std::vector<int>{0, 3, 2, 1} : std::vector<int>{0, 2, 3, 1})"),
    ]),
    ("vision", "models/vision/heads.cpp", VISION, [
        ("seen-patches-count", "return sum(«of_patch * mask», {1, 2})", "of_patch"),
        ("hidden-patches-seen", "token_features(images, params, config, «mask»)", "Tensor()"),
    ]),
    ("vision", "models/vision/mixers.cpp", VISION, [
        ("softmax-unscaled", "matmul(views.q * «scale», views.k", "1.0"),
        ("queries-kept", "if («mixer.query_is_key») out.q = out.k", "false"),
    ]),
    ("vision", "models/vision/vision_checkpoint.cpp", VISION, [
        ("changed-mixer-kept-by-name", "!c.mixer.name.empty() && «mixer_named(c.mixer.name) == c.mixer»", "true"),
        ("size-not-looked-at", "!(«least <= 1.001 * held»)", "true"),
        ("levels-not-bounded", "within(\"num_levels\", «c.levels», kMostLevels)", "0"),
        ("places-not-bounded", "«c.rows() * c.columns() * c.width», kMostPlaced", "0"),
        ("ratio-not-bounded", "within(\"hidden_ratio\", «c.hidden_ratio», kMostRatio)", "0"),
    ]),
    ("vision", "look/model_numbers.cpp", INSPECTION, [
        ("cotangent-of-the-sum", "grad(«mean(seen.losses)», seen.answers)", "sum(seen.losses) * 2.0"),
    ]),
    ("vision", "look/inspected_block.cpp", INSPECTION, [
        ("views-of-the-first-block", "scene.inputs, params, config, «layer», loop)", "0"),
        ("loss-of-given-views", "return slice(images, 1, «scene.inputs», images.dim(1));", "0"),
        ("loop-of-the-first-block", "class_logits(pixels(in[0], params), params, config, «layer», loop)", "0"),
    ]),
    ("vision", "look/views/patches.cpp", INSPECTION, [
        ("map-of-the-first-token", "(«h * time + token») * time", "h * time"),
        ("images-one-below-the-other", "«row * columns + image * p.columns + i % p.columns»", "i"),
        ("frame-in-the-first-image", "    patch -= «each»;\n", "0"),
        ("frame-in-the-first-row", "top = «patch / p.columns * edge», left", "0 * edge"),
    ]),
    ("vision", "models/vision/view_synthesis.cpp", VISION, [
        ("attention-over-all-views", "reshape(x, {«batch * views, tokens», c.width})",
         "FAULT ? batch : batch * views, FAULT ? views * tokens : tokens"),
        ("asked-images-seen", "slice(images, 1, 0, «inputs») * 2.0 - 1.0", "inputs"),
        ("off-learns", "if («l.update») {", "true"),
        ("keys-of-all-views", "return slice(rows, axis, 0, «learnt»)", "rows.dim(axis)"),
        ("descends", ".ascent = «l.ascent»", "false"),
        ("all-layers-learn", "if («l.only_last») out.trained", "false"),
        ("asked-views-learnt", "gates[name] = «pad(rate, 2, 0, asked)»", "concat({rate, slice(rate, 2, 0, asked)}, 2)"),
    ]),
    ("vision", "models/vision/diffusion.cpp", VISION, [
        ("gate-forgotten", "x = x + «m[2]» * mix(", "0.0 * m[2] + 1.0"),
        ("level-forgotten", "return «level» + gather(", "0.0 * level"),
    ]),
    ("vision", "models/vision/noise_schedule.cpp", VISION, [
        ("deviation-for-variance", "noise * of_level([](double k) { return «std::sqrt(1 - k)»; })", "1 - k"),
        ("guidance-to-nothing", "of_none[i] + o.guidance * («static_cast<double>(e[i]) - of_none[i]»)", "of_none[i] - static_cast<double>(e[i])"),
    ]),
    ("images", "models/images/glyphs.cpp", IMAGES, [
        ("classes-in-order", "return order[«index % n»]", "0"),
    ]),
    ("images", "models/images/pen.cpp", IMAGES, [
        ("coinciding-points-apart", "moved.push_back(«same != seen.end()» ?", "false"),
        ("ink-of-full-thickness", "std::clamp(«half» + 0.5 - std::sqrt", "2 * half"),
    ]),
    ("images", "models/images/invented.cpp", IMAGES, [
        ("one-hand", "(character << 20) + «hand»", "0"),
    ]),
    ("reproduce", "reproduce/image_runs.cpp", (files("reproduce/images"),), [
        ("held-out-by-seed", "glyphs(look_ == Look::plain ? kPlain : kCluttered, «kHeldOutSeed», from, count)", "from"),
    ]),
    ("reproduce", "reproduce/experiments/shift_model.cpp", (files("reproduce/images"),), [
        ("nothing-forgotten", "if («!how_.keep») forget()", "false"),
        ("step-of-nothing", "out.push_back(at[i] - «problem_.rate» * g[i])", "0.0"),
        ("turns-of-another", "return {«turned(images, turns)», turns}", "images"),
    ]),
    ("reproduce", "reproduce/experiments/generation_metrics.cpp", (files("reproduce/generation"),), [
        ("biased-kernel", "return 2 * sum / (n * («n - 1»))", "n"),
        ("correlations-forgotten", "root[i * n + j] += «std::sqrt(std::max(e.values[k], 0.0))» *", "1.0"),
    ]),
    ("reproduce", "reproduce/experiments/few_shot_characters.cpp", (files("reproduce/characters"),), [
        ("tested-are-trained", "(«i % 5 == 4» ? testing_ : training_)", "false"),
        ("same-hand-twice", "if («std::ranges::find(chosen, one) == chosen.end()»)", "true"),
    ]),
    ("reproduce", "reproduce/experiments/recall_episodes.cpp", (files("reproduce/recall"),), [
        ("answers-in-order", "*answer++ = static_cast<std::int32_t>(values[static_cast<std::size_t>(«asked»)])", "answer - out.answers.as<std::int32_t>().data()"),
    ]),
    ("reproduce", "reproduce/experiments/meta_learning.cpp", (files("reproduce/few_shot"),), [
        ("first-order-is-exact", "problem.rate * («first_order» ? stop_gradient(g) : g)", "false"),
        ("direction-is-the-residual", "direction = add(residual, «ratio(next, size)», direction)", "zero_like(next)"),
    ]),
    ("programs", "programs/training_folder.cpp", PROGRAM_FOLDERS, [
        ("any-metrics-are-its-own", "return «std::ssize(parse_metrics(read_found_file(metrics_path), metrics_path)) <= first_save»;", "true"),
    ]),
    ("programs", "programs/out_folder.cpp", PROGRAM_FOLDERS, [
        ("page-in-place-of-anything", "return of_page(name) && «inspected_files(folder).has_value()»;", "true"),
    ]),
    ("programs", "look/inspection.cpp", INSPECTION, [
        ("earlier-page-left-over", "for (const std::string& name : left_over) «fs::remove(folder + \"/\" + name, error);»", None),
        ("list-names-any-file", "if (name.is_string() && «may_be_of_a_page(name)») out.push_back(name);", "true"),
    ]),
    ("programs", "programs/program.cpp", PROGRAM_FOLDERS, [
        ("reader-gone-unnoticed", "if («std::fflush(out) != 0 || std::ferror(out)») throw IoError(kOutputFails);", "false"),
    ]),
    ("programs", "models/trainer.cpp", TRAINING, [
        ("grains-before-settings", "«check_settings(file, asked.to_json(), written_later(), path);» return asked.grains;", None),
    ]),
    ("model", "models/language_model.cpp", TRAINING, [
        ("target-is-the-input", "«slice(tokens, 1, 1, time + 1)»", "slice(tokens, 1, 0, time)"),
    ]),
]

# Operands of structured ops in which a derivative passes. Those of elementwise ops are in their rows.
OP_TABLE = {
    "all_sum": [0], "exchange": [0], "own": [0], "rank_after": [0], "rank_before": [0], "vary": [0],
    "broadcast_to": [0], "cast": [0], "causal_attention": [0, 1, 2],
    "causal_attention_derivative": [0, 1, 2, 3, 4], "concat": [0, 1, 2], "cumsum": [0], "custom_vjp": [0, 1], "gather": [0],
    "index_add": [0, 2], "iota": [], "matmul": [0, 1], "max_over": [0], "pad": [0], "permute": [0], "probe": [0], "reshape": [0],
    "scatter_add": [1], "select": [1, 2], "slice": [0], "solve": [0, 1], "stop_gradient": [], "sum": [0],
    "triangular_solve": [0, 1], "tril": [0],
}

# Faults that change no result, each with its proof.
EQUIVALENT = {
    "law/gradient-point-includes-the-token": "only WY asks, and its triangular solve reads what is below the "
    "diagonal",
    "wy/held-use-accepted": "a weight of which the only use is held does not reach the loss, and is refused before",
    "graph/bodies-with-other-attributes-shared": "their hashes, compared before, have attributes mixed in",
    "graph/bodies-with-other-outputs-shared": "their hashes, compared before, have the outputs mixed in",
    "memory/products-recomputed": "what is recomputed has the same bits: only time is lost",
    "stepped/backwards-view": "no row has a view with a negative stride",
    "stepped/sum-slice-by-slice": "a body of which a stack is a sum over slices is not cut into slices",
    "plan/output-written-over": "an output has a place of the caller's, and only buffers are taken over",
    "scan-run/copy-of-every-slice-stored": "what a slice does not own has the same bits in each slice: "
    "any may store it; that two threads do is for ThreadSanitizer",
    "axes-more/permute": "every axis of a permute goes somewhere, so that there is none to claim more of",
}
