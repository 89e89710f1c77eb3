#include "files/toml.h"

#include <charconv>
#include <cstring>
#include <limits>

#include "files/text.h"

namespace pestle::files {
namespace {

using Kind = TomlValue::Kind;

constexpr int kMaxDepth = 32;

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

class TomlReader {
 public:
  TomlReader(std::string_view text, const std::string& label) : text_(text), label_(label) {}

  Result<TomlValue> read() {
    TomlValue root;
    TomlValue* current = &root;
    for (skip_lines(); at_ < text_.size(); skip_lines()) {
      if (!status_.ok()) return status_;
      if (peek() == '[') {
        current = read_header(root);
      } else {
        read_pair(*current, 0);
      }
      if (status_.ok()) end_line();
      if (!status_.ok()) return status_;
    }
    if (!status_.ok()) return status_;
    return root;
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool at_end() const { return at_ >= text_.size(); }
  bool starts(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  void fail(const std::string& what) {
    if (!status_.ok()) return;
    status_ = invalid_argument(label_ + ":" + std::to_string(line_) + ": no valid TOML: " + what);
  }
  void fail_here(const std::string& expected) {
    fail("expected " + expected +
         (at_end() ? " before the end" : ", found " + quote(text_.substr(at_, 1))));
  }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  // A comment, up to its line break.
  void skip_comment() {
    if (peek() != '#') return;
    for (; !at_end() && text_[at_] != '\n'; ++at_) {
      const auto byte = static_cast<unsigned char>(text_[at_]);
      const bool break_follows = byte == '\r' && peek(1) == '\n';
      if ((byte < 0x20 && byte != '\t' && !break_follows) || byte == 0x7F) {
        fail("a control character in a comment");
      }
    }
  }
  bool take_break() {
    if (peek() == '\r' && peek(1) == '\n') ++at_;
    if (peek() != '\n') return false;
    ++at_;
    ++line_;
    return true;
  }
  // Blanks, comments and line breaks.
  void skip_lines() {
    do {
      skip_blanks();
      skip_comment();
    } while (take_break());
  }
  void end_line() {
    skip_blanks();
    skip_comment();
    if (!at_end() && !take_break()) fail_here("the end of the line");
  }

  std::string read_key_part() {
    if (peek() == '"' || peek() == '\'') return read_string(false);
    const size_t start = at_;
    while (is_bare(peek())) ++at_;
    if (at_ == start) fail_here("a key");
    return std::string(text_.substr(start, at_ - start));
  }

  std::vector<std::string> read_key() {
    std::vector<std::string> parts;
    for (;;) {
      skip_blanks();
      parts.push_back(read_key_part());
      skip_blanks();
      if (parts.size() > kMaxDepth) fail("a key of more than 32 parts");
      if (!status_.ok() || peek() != '.') return parts;
      ++at_;
    }
  }

  // The table that `key`, a part of a dotted key or header, names in `table`; made if new.
  TomlValue* descend(TomlValue& table, const std::string& key) {
    TomlValue* found = table.find(key);
    if (found == nullptr) {
      TomlValue made;
      made.line = line_;
      table.members.push_back({key, std::move(made)});
      return &table.members.back().value;
    }
    if (found->kind == Kind::kArray && !found->closed) return &found->items.back();
    if (found->kind == Kind::kTable && !found->closed) return found;
    fail("key " + quote(key) + " is already given");
    return &table;
  }

  // "[a.b]" or "[[a.b]]"; yields the table that the following lines fill.
  TomlValue* read_header(TomlValue& root) {
    ++at_;
    const bool is_array = peek() == '[';
    if (is_array) ++at_;
    const std::vector<std::string> parts = read_key();
    TomlValue* table = &root;
    if (!status_.ok()) return table;
    for (size_t i = 0; i + 1 < parts.size(); ++i) table = descend(*table, parts[i]);
    if (!starts(is_array ? "]]" : "]")) fail_here(is_array ? "']]'" : "']'");
    at_ += is_array ? 2 : 1;
    if (!status_.ok()) return table;
    return is_array ? open_item(*table, parts.back()) : open_table(*table, parts.back());
  }

  TomlValue* open_table(TomlValue& parent, const std::string& key) {
    if (parent.find(key) != nullptr) {
      fail("table " + quote(key) + " is already given");
      return &parent;
    }
    return descend(parent, key);
  }

  TomlValue* open_item(TomlValue& parent, const std::string& key) {
    TomlValue* array = parent.find(key);
    if (array == nullptr) {
      array = descend(parent, key);
      array->kind = Kind::kArray;
    }
    if (array->kind != Kind::kArray || array->closed) {
      fail("key " + quote(key) + " is already given");
      return &parent;
    }
    array->items.emplace_back().line = line_;
    return &array->items.back();
  }

  void read_pair(TomlValue& table, int depth) {
    const std::vector<std::string> parts = read_key();
    TomlValue* owner = &table;
    if (!status_.ok()) return;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      owner = descend(*owner, parts[i]);
      if (!status_.ok()) return;
    }
    if (owner->find(parts.back()) != nullptr) {
      return fail("key " + quote(parts.back()) + " is already given");
    }
    if (peek() != '=') return fail_here("'='");
    ++at_;
    skip_blanks();
    TomlValue value = read_value(depth);
    if (status_.ok()) owner->members.push_back({parts.back(), std::move(value)});
  }

  TomlValue read_value(int depth) {
    TomlValue value;
    value.line = line_;
    value.closed = true;
    const char c = peek();
    if (depth > kMaxDepth) {
      fail("nested deeper than 32 levels");
    } else if (c == '"' || c == '\'') {
      value.kind = Kind::kString;
      value.text = read_string(true);
    } else if (c == '[') {
      read_array(value, depth);
    } else if (c == '{') {
      read_inline_table(value, depth);
    } else {
      read_word(value);
    }
    return value;
  }

  void read_array(TomlValue& value, int depth) {
    value.kind = Kind::kArray;
    ++at_;
    for (skip_lines(); status_.ok() && peek() != ']'; skip_lines()) {
      value.items.push_back(read_value(depth + 1));
      skip_lines();
      if (peek() == ',') {
        ++at_;
      } else if (peek() != ']') {
        fail_here("',' or ']'");
      }
    }
    ++at_;
  }

  void read_inline_table(TomlValue& value, int depth) {
    ++at_;
    value.closed = false;  // its own dotted keys may add while it is read
    skip_blanks();
    bool more = peek() != '}';
    while (more && status_.ok()) {
      read_pair(value, depth + 1);
      skip_blanks();
      more = peek() == ',';
      if (more) ++at_;
    }
    if (peek() != '}') fail_here("',' or '}'");
    ++at_;
    close(value);
  }

  static void close(TomlValue& value) {
    value.closed = true;
    for (TomlMember& member : value.members) {
      if (!member.value.closed) close(member.value);
    }
  }

  // true, false or a number.
  void read_word(TomlValue& value) {
    const size_t start = at_;
    while (is_bare(peek()) || peek() == '+' || peek() == '.' || peek() == ':') ++at_;
    const std::string_view word = text_.substr(start, at_ - start);
    if (word.empty()) return fail_here("a value");
    if (word == "true" || word == "false") {
      value.kind = Kind::kBool;
      value.boolean = word == "true";
    } else if (!read_number(word, value)) {
      fail(quote(word) + " is no value: text needs quotes, dates and times are not read");
    }
  }

  static bool read_number(std::string_view word, TomlValue& value) {
    std::string digits;  // without '_', each of which must stand between two digits
    for (size_t i = 0; i < word.size(); ++i) {
      if (word[i] != '_') {
        digits += word[i];
      } else if (i == 0 || i + 1 == word.size() ||
                 !isxdigit(static_cast<unsigned char>(word[i - 1])) ||
                 !isxdigit(static_cast<unsigned char>(word[i + 1]))) {
        return false;
      }
    }
    std::string_view body = digits;
    const bool signed_word = body[0] == '+' || body[0] == '-';
    const bool negative = body[0] == '-';
    if (signed_word) body.remove_prefix(1);
    if (body.empty()) return false;
    if (body == "inf" || body == "nan") {
      value.kind = Kind::kReal;
      value.real = body == "nan" ? std::numeric_limits<double>::quiet_NaN()
                                 : std::numeric_limits<double>::infinity();
      if (negative) value.real = -value.real;
      return true;
    }
    if (body.size() > 2 && body[0] == '0' && std::strchr("xob", body[1]) != nullptr) {
      const int base = body[1] == 'x' ? 16 : body[1] == 'o' ? 8 : 2;
      return !signed_word && read_integer(body.substr(2), base, false, value);
    }
    if (body[0] < '0' || body[0] > '9') return false;
    if (body.size() > 1 && body[0] == '0' && body[1] >= '0' && body[1] <= '9') return false;
    if (body.find_first_of(".eE") == std::string_view::npos) {
      return read_integer(body, 10, negative, value);
    }
    return read_real(body, negative, value);
  }

  static bool read_integer(std::string_view body, int base, bool negative, TomlValue& value) {
    uint64_t magnitude = 0;
    const char* end = body.data() + body.size();
    const auto [stop, code] = std::from_chars(body.data(), end, magnitude, base);
    const uint64_t limit = (uint64_t{1} << 63) - (negative ? 0 : 1);
    if (code != std::errc() || stop != end || magnitude > limit) return false;
    value.kind = Kind::kInteger;
    value.integer = static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
    return true;
  }

  static bool read_real(std::string_view body, bool negative, TomlValue& value) {
    const size_t dot = body.find('.');
    if (dot != std::string_view::npos &&
        (dot + 1 == body.size() || body[dot + 1] < '0' || body[dot + 1] > '9')) {
      return false;
    }
    const char* end = body.data() + body.size();
    const auto [stop, code] = std::from_chars(body.data(), end, value.real);
    if (code != std::errc() || stop != end) return false;
    value.kind = Kind::kReal;
    if (negative) value.real = -value.real;
    return true;
  }

  std::string read_string(bool may_span_lines) {
    const char delimiter = peek();
    const std::string three(3, delimiter);
    const bool spans = may_span_lines && starts(three);
    at_ += spans ? 3 : 1;
    if (spans) take_break();  // a break right after the opening is not part of the text
    std::string out;
    while (status_.ok()) {
      if (at_end()) {
        fail("a string without its closing " + quote(std::string(1, delimiter)));
      } else if (spans ? starts(three) : peek() == delimiter) {
        at_ += spans ? 3 : 1;
        // Up to two delimiters may stand right before the closing three.
        for (int extra = 0; spans && extra < 2 && peek() == delimiter; ++extra, ++at_) {
          out += delimiter;
        }
        return out;
      } else {
        read_character(delimiter == '"', spans, out);
      }
    }
    return out;
  }

  void read_character(bool escapes, bool spans, std::string& out) {
    const auto byte = static_cast<unsigned char>(peek());
    if (spans && take_break()) {
      out += '\n';
    } else if (byte == '\\' && escapes) {
      ++at_;
      read_escape(spans, out);
    } else if ((byte < 0x20 && byte != '\t') || byte == 0x7F) {
      fail("a control character or line break inside a string");
    } else {
      out += static_cast<char>(byte);
      ++at_;
    }
  }

  void read_escape(bool spans, std::string& out) {
    static constexpr std::string_view kNames = "btnfr\"\\";
    static constexpr std::string_view kValues = "\b\t\n\f\r\"\\";
    const char c = peek();
    if (const size_t i = kNames.find(c); i != std::string_view::npos && !at_end()) {
      out += kValues[i];
      ++at_;
    } else if (c == 'u' || c == 'U') {
      ++at_;
      read_code_point(c == 'u' ? 4 : 8, out);
    } else if (spans) {
      skip_blanks();  // "\" at the end of a line joins it to the next text
      if (!take_break()) return fail("an unknown escape in a string");
      do skip_blanks();
      while (take_break());
    } else {
      fail("an unknown escape in a string");
    }
  }

  void read_code_point(size_t digits, std::string& out) {
    const std::string_view hex = text_.substr(at_, digits);
    uint32_t code = 0;
    const auto [stop, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (hex.size() != digits || error != std::errc() || stop != hex.data() + digits ||
        code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return fail("an escape that is no Unicode character");
    }
    append_utf8(code, out);
    at_ += digits;
  }

  std::string_view text_;
  const std::string& label_;
  size_t at_ = 0;
  int line_ = 1;
  Status status_;
};

}  // namespace

TomlValue* TomlValue::find(std::string_view key) {
  for (TomlMember& member : members) {
    if (member.name == key) return &member.value;
  }
  return nullptr;
}

Result<TomlValue> parse_toml(std::string_view text, const std::string& label) {
  if (const size_t bad = first_invalid_utf8(text); bad != text.size()) {
    return invalid_argument(label + ": no valid TOML: not UTF-8 at byte " + std::to_string(bad));
  }
  return TomlReader(text, label).read();
}

}  // namespace pestle::files
