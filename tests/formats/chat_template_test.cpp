#include "formats/chat_template.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/files.h"

namespace gramian {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing_support::error_of;
using testing_support::TemporaryFolder;
using testing_support::write_bytes;

// Sets an environment variable for a scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

class ChatTemplateTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) {
    write_bytes(folder_.path() / name, content);
  }
  std::string render(const std::string& text, const std::string& messages, const ChatOptions& options = {}) {
    write("chat_template.jinja", text);
    const auto texts =
        ChatTemplate::find(folder_.path())->render({{Json::parse(messages), "here"}}, options, log_);
    return texts ? texts->at(0) : "no Python";
  }
  std::string failure(const std::string& text, const std::string& messages = "[]",
                      const ChatOptions& options = {}) {
    const Error error = error_of([&] { render(text, messages, options); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << error.what();
    EXPECT_NE(std::string(error.what()).find("chat_template.jinja"), std::string::npos) << error.what();
    return error.what();
  }
  void expect_failure(const std::string& text, const std::string& says) {
    const std::string message = failure(text);
    EXPECT_NE(message.find(says), std::string::npos) << text << ": " << message;
  }

  TemporaryFolder folder_;
  Log log_{LogLevel::quiet};
};

const std::string kTwo =
    R"([{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Zoë <b> \"q\"\n"}])";

// The expected texts of the next two are what transformers 5.23.0 renders.
TEST_F(ChatTemplateTest, RendersTurnsAsTransformersDoes) {
  write("tokenizer_config.json",
        R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>", "pad_token": null})");
  const std::string text = R"({{- bos_token }}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' %}
        {%- set system = message['content'] | trim %}
    {%- else %}
        {{- '<|' + message['role'] + '|>\n' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{%- endif %}
)";
  EXPECT_EQ(render(text, kTwo), "<s><|user|>\nZoë <b> \"q\"\n</s>");
  EXPECT_EQ(render(text, kTwo, {.add_generation_prompt = true, .date = {}}),
            "<s><|user|>\nZoë <b> \"q\"\n</s><|assistant|>\n");
}

TEST_F(ChatTemplateTest, HasWhatTransformersGivesTemplates) {
  const std::string text = R"({% set ns = namespace(count=0) %}
{% for m in messages %}
  {% if m.role == 'stop' %}{% break %}{% endif %}
  {% if m.role == 'skip' %}{% continue %}{% endif %}
  {% set ns.count = ns.count + 1 %}
  {% generation %}
  [{{ m.reasoning_content }}|{{ m.thinking }}]{{ m.content }}
  {% endgeneration %}
{% endfor %}
{{ ns.count }} {{ dict(a=1, b='é') | tojson }} {{ tools is none }} {{ documents is none }}{{ pad_token }}{{ unknown }}
{{ messages[0] | tojson(sort_keys=true, indent=1) }} {{ "<&'" | tojson }} {{ "<&" | e }}
)";
  EXPECT_EQ(
      render(
          text,
          R"([{"role": "skip", "content": "x"}, {"role": "user", "content": "y", "thinking": "t", "name": null},
                             {"role": "stop", "content": "z"}, {"role": "user", "content": "no"}])"),
      "  [t|t]y\n1 {\"a\": 1, \"b\": \"é\"} True True\n{\n \"content\": \"x\",\n \"role\": \"skip\"\n} "
      "\"<&'\" &lt;&amp;");
}

TEST_F(ChatTemplateTest, TheDateIsTodayOrTheOneAsked) {
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y') }}", "[]", {.date = "2024-07-26"}), "26 Jul 2024");
  EXPECT_GE(std::stoi(render("{{ strftime_now('%Y') }}", "[]")), 2025);
}

TEST_F(ChatTemplateTest, ManyConversationsAtOnce) {
  write("chat_template.jinja",
        "{{ messages | length }}{% if messages | length == 2 %}{{ raise_exception('two!') }}{% endif %}");
  std::vector<Conversation> all{{Json::array({Json::object()}), "line 1"}, {Json::array(), "line 2"}};
  const ChatTemplate found = *ChatTemplate::find(folder_.path());
  EXPECT_EQ(*found.render(all, {}, log_), (std::vector<std::string>{"1", "0"}));
  all.push_back({Json::array({Json::object(), Json::object()}), "line 3"});
  const Error error = error_of([&] { found.render(all, {}, log_); });
  EXPECT_NE(std::string(error.what()).find("at line 3: two!"), std::string::npos) << error.what();
}

TEST_F(ChatTemplateTest, FoundInThreePlaces) {
  EXPECT_FALSE(ChatTemplate::find(folder_.path()));
  write("tokenizer_config.json", "{}");
  EXPECT_FALSE(ChatTemplate::find(folder_.path()));
  write("chat_template.json", R"({"chat_template": "oldest"})");
  EXPECT_EQ(ChatTemplate::find(folder_.path())->text(), "oldest");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(ChatTemplate::find(folder_.path())->text(), "d");
  write("tokenizer_config.json", R"({"chat_template": "configured"})");
  EXPECT_EQ(ChatTemplate::find(folder_.path())->text(), "configured");
  write("chat_template.jinja", "own");
  EXPECT_EQ(ChatTemplate::find(folder_.path())->text(), "own");
  EXPECT_EQ(ChatTemplate::find(folder_.path())->source(), folder_.path() / "chat_template.jinja");
}

TEST_F(ChatTemplateTest, DamagedFilesAreNamed) {
  for (const char* config : {"[]", "{", R"({"chat_template": 1})", R"({"chat_template": ["x"]})",
                             R"({"chat_template": [{"name": "default"}]})",
                             R"({"chat_template": [{"name": "rag", "template": "r"}]})",
                             R"({"chat_template": "x", "bos_token": 1})",
                             R"({"chat_template": "x", "bos_token": {"content": 1}})"}) {
    write("tokenizer_config.json", config);
    const Error error = error_of([&] { ChatTemplate::find(folder_.path()); });
    EXPECT_EQ(error.kind(), ErrorKind::corrupt_data) << config;
    EXPECT_NE(std::string(error.what()).find("tokenizer_config.json"), std::string::npos) << error.what();
  }
  fs::remove(folder_.path() / "tokenizer_config.json");
  write("chat_template.jinja", "\xff");
  EXPECT_EQ(error_of([&] { ChatTemplate::find(folder_.path()); }).kind(), ErrorKind::corrupt_data);
  write("chat_template.jinja", "x");
  EXPECT_EQ(error_of([&] {
              ChatTemplate::find(folder_.path())->render({{Json::array({"\xff"}), "here"}}, {}, log_);
            }).kind(),
            ErrorKind::invalid_argument);
}

TEST_F(ChatTemplateTest, FailuresCarryTheTemplatesWords) {
  expect_failure("{{ raise_exception('roles must alternate') }}", "roles must alternate");
  expect_failure("x\n{% for m in messages %}\n{{ m.content }\n", "line 3");
  expect_failure("{{ 1 / 0 }}", "zero");
  expect_failure("{{ messages | no_such_filter }}", "no_such_filter");
  expect_failure("{{ '\\ud800' }}", "surrogates");
}

TEST_F(ChatTemplateTest, TheSandboxHolds) {
  // An attribute that the sandbox withholds is undefined, which prints as nothing and has no attributes itself.
  for (const char* text : {"{{ ''.__class__ }}", "{{ raise_exception.__globals__ }}",
                           "{{ namespace().__init__ }}", "{{ '{0.__class__}'.format(1) }}",
                           "{{ strftime_now.__code__ }}", "{{ messages | attr('__class__') }}"}) {
    EXPECT_EQ(render(text, "[]"), "") << text;
  }
  expect_failure("{{ ''.__class__.__mro__ }}", "unsafe");
  expect_failure("{{ dict.__class__.__base__.__subclasses__() }}", "unsafe");
  expect_failure("{{ cycler.__init__.__globals__.os.system('id') }}", "unsafe");
  expect_failure("{{ namespace(__class__=1) }}", "namespace");
  expect_failure("{{ messages.append(1) }}", "append");
  expect_failure("{{ range(100000000) | list }}", "ange");
  expect_failure("{% include '/etc/passwd' %}", "loader");
  expect_failure("{% import 'os' as os %}", "loader");
}

TEST_F(ChatTemplateTest, MemoryTimeAndOutputAreBounded) {
  const ChatOptions small{.date = {}, .cpu_seconds = 1, .output_bytes = 1 << 20};
  EXPECT_NE(failure("{{ 'x' * 4000000000 }}", "[]", small).find("MiB"), std::string::npos);
  EXPECT_NE(
      failure(
          "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
          "[]", small)
          .find("MiB"),
      std::string::npos);
  const auto start = std::chrono::steady_clock::now();
  const std::string endless =
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor "
      "%}{% endfor %}";
  EXPECT_NE(failure(endless, "[]", small).find("longer than 1 s"), std::string::npos);
  EXPECT_NE(failure("{{ 9 ** (9 ** 9) }}", "[]", small).find("longer than 1 s"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_NE(failure("{{ 'x' * 3000000 }}", "[]", small).find("wrote more than"), std::string::npos);
  EXPECT_EQ(render("{{ 'x' * 3000 }}", "[]", small).size(), 3000u);
}

TEST_F(ChatTemplateTest, WithoutPythonNothingIsRendered) {
  const Variable own("GRAMIAN_PYTHON", "/nonexistent/python");
  write("chat_template.jinja", "x");
  EXPECT_FALSE(ChatTemplate::find(folder_.path())->render({{Json::array(), ""}}, {}, log_));
  ASSERT_EQ(log_.warnings().size(), 1u);
  EXPECT_NE(log_.warnings().begin()->first.find("/nonexistent/python"), std::string::npos);
}

TEST_F(ChatTemplateTest, PythonWithoutJinjaIsNamed) {
  write("python", "#!/bin/sh\nprintf '{\"missing\": \"jinja2\"}'\n");
  fs::permissions(folder_.path() / "python", fs::perms::owner_all);
  const Variable own("GRAMIAN_PYTHON", (folder_.path() / "python").string());
  write("chat_template.jinja", "x");
  EXPECT_FALSE(ChatTemplate::find(folder_.path())->render({{Json::array(), ""}}, {}, log_));
  EXPECT_NE(log_.warnings().begin()->first.find("needs jinja2"), std::string::npos);
}

}  // namespace
}  // namespace gramian
