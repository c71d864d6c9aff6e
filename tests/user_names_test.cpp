// A user's file: it says `using namespace nestgrad` and has types of its own, of the most usual names. A name
// that the library took too would be ambiguous at its first use here, and this file would not compile.
#include <doctest/doctest.h>

#include "nestgrad.h"

using namespace nestgrad;

// clang-format off
#define USERS_TYPES(NAME) \
  NAME(Action) NAME(Activation) NAME(Agent) NAME(Argument) NAME(Batch) NAME(Block) NAME(Body) NAME(Buffer) \
  NAME(Cache) NAME(Call) NAME(Cell) NAME(Channel) NAME(Checkpoint) NAME(Config) NAME(Context) NAME(Cost) \
  NAME(Data) NAME(DataLoader) NAME(Dataset) NAME(Edge) NAME(Embedding) NAME(Encoder) NAME(Environment) \
  NAME(Event) NAME(Example) NAME(Experiment) NAME(Flow) NAME(Gate) NAME(Head) NAME(Index) NAME(Kernel) \
  NAME(Layer) NAME(Learner) NAME(Line) NAME(Logger) NAME(Loss) NAME(Matrix) NAME(Memory) NAME(Metric) \
  NAME(Metrics) NAME(Mlp) NAME(Mode) NAME(Model) NAME(Module) NAME(Network) NAME(Node) NAME(Noise) \
  NAME(Observation) NAME(Optimizer) NAME(Options) NAME(Output) NAME(Parameter) NAME(Parameters) NAME(Pass) \
  NAME(Path) NAME(Point) NAME(Policy) NAME(Pool) NAME(Position) NAME(Problem) NAME(Program) NAME(Range) \
  NAME(Record) NAME(Report) NAME(Result) NAME(Reward) NAME(Row) NAME(Rule) NAME(Run) NAME(Sample) \
  NAME(Schedule) NAME(Seed) NAME(Settings) NAME(Solver) NAME(State) NAME(Step) NAME(Stream) NAME(System) \
  NAME(Table) NAME(Task) NAME(Text) NAME(Timer) NAME(Token) NAME(Tokenizer) NAME(Transform) \
  NAME(Transpose) NAME(Value) NAME(Vector) NAME(View) NAME(Visitor) NAME(Vocabulary) NAME(Weights) \
  NAME(World)
#define USERS_FUNCTIONS(NAME) \
  NAME(accuracy) NAME(attention) NAME(block) NAME(embed) NAME(evaluate) NAME(forward) NAME(linear) NAME(loss) \
  NAME(mlp) NAME(model) NAME(mse) NAME(predict) NAME(sample) NAME(step) NAME(train) NAME(update)
// clang-format on

// Defined at global scope, where using-directives put the library's names as well ...
#define DEFINE(NAME) \
  struct NAME {      \
    int number = 1;  \
  };
#define DEFINE_FUNCTION(NAME) \
  int NAME(Tensor) { return 1; }
namespace {
USERS_TYPES(DEFINE)
USERS_FUNCTIONS(DEFINE_FUNCTION)
}  // namespace

// ... and used there, where both are looked up.
#define USE(NAME) +NAME().number
#define CALL(NAME) +NAME(Tensor())
#define COUNT(NAME) +1

TEST_CASE("a user's own Model, System, Step and the like stand beside the library's names") {
  CHECK((0 USERS_TYPES(USE)) == (0 USERS_TYPES(COUNT)));
  CHECK((0 USERS_FUNCTIONS(CALL)) == (0 USERS_FUNCTIONS(COUNT)));
  Function f =
      trace([](Tensor x) { return sum(square(x)); }, Spec{DType::f64, {2}});  // the library's, beside
  CHECK(f(Array::of({3, 4}, {2})).item() == 25);
}
