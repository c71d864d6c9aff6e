#include "programs/given_model.h"

#include <fmt/format.h>

#include "engine/io/file.h"
#include "models/language_model.h"
#include "models/traced_model.h"
#include "programs/program.h"

namespace nestgrad {

void say_rounded(const std::string& path, const std::vector<std::string>& parameters) {
  if (parameters.empty()) return;
  say(fmt::format("{}: {} parameters have more digits than f32 and were rounded: {}", printable(path),
                  parameters.size(), listed(parameters)));
}

Checkpoint given_model(const std::string& path, bool speaks) {
  Checkpoint out = read_checkpoint(path);
  check_finite(out.params, path);
  const TracedModel model =
      trace_model(DType::f32, {{DType::i32, {1, 3}}}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        ttt::Stream stream;
        return std::vector<Tensor>{next_token_loss(out.config, Params(table), in[0], stream)};
      });
  check_fits(model.params, out.params, printable(path));
  if (!speaks) return out;
  if (!out.assumed.empty())
    say(fmt::format("{}: no config.json; as in every published run: {}", printable(path), out.assumed));
  say_rounded(path, out.rounded);
  return out;
}

}  // namespace nestgrad
