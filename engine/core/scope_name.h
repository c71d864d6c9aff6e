// ScopeName: the names of enclosing scopes, joined by '/'. Copies share one text: every node has one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace nestgrad {

class ScopeName {
 public:
  ScopeName() = default;
  explicit ScopeName(std::string text)
      : text_(text.empty() ? nullptr : std::make_shared<const std::string>(std::move(text))) {}
  // The scope `name` within another.
  ScopeName(const ScopeName& outer, std::string_view name)
      : ScopeName(outer.empty() ? std::string(name) : outer.str() + '/' + std::string(name)) {}
  const std::string& str() const {
    static const std::string nothing;
    return text_ ? *text_ : nothing;
  }
  bool empty() const { return !text_; }
  bool operator==(const ScopeName& other) const { return text_ == other.text_ || str() == other.str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

}  // namespace nestgrad
