#include "eval/html_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"

namespace gramian {
namespace {

using Json = nlohmann::ordered_json;
using testing_support::error_of;

TEST(EscapeHtml, TextAndAttributes) {
  EXPECT_EQ(escape_html("a < b && \"c\" > 'd'"), "a &lt; b &amp;&amp; &quot;c&quot; &gt; &#39;d&#39;");
  EXPECT_EQ(escape_html("</script><script>alert(1)</script>"),
            "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
  EXPECT_EQ(escape_html("na\xC3\xAFve\tline\n"), "na\xC3\xAFve\tline\n");
  EXPECT_EQ(escape_html(std::string("a\0b\x1b\x7f\r", 6)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(FillTemplate, Texts) {
  EXPECT_EQ(fill_template("<p title=\"{{a}}\">{{b}}</p>", {{"a", "\"x\""}, {"b", "1 < 2"}}),
            "<p title=\"&quot;x&quot;\">1 &lt; 2</p>");
  EXPECT_EQ(fill_template("no tags", Json::object()), "no tags");
  EXPECT_EQ(fill_template("", Json::object()), "");
}

TEST(FillTemplate, WhatIsInsertedIsNotLookedAtAgain) {
  EXPECT_EQ(fill_template("{{a}}{{b}}", {{"a", "{{b}}{{#b}}"}, {"b", "x"}}), "{{b}}{{#b}}x");
}

TEST(FillTemplate, Sections) {
  const std::string html = "{{#list}}[{{name}}{{unit}}]{{/list}}{{^list}}none{{/list}}";
  const Json two = Json::array({{{"name", "a"}, {"rest", ""}}, {{"name", "b"}, {"unit", " s"}}});
  EXPECT_EQ(fill_template(html, {{"list", two}, {"unit", " m"}}), "[a m][b s]");
  EXPECT_EQ(fill_template(html, {{"list", Json::array()}, {"unit", ""}}), "none");
  EXPECT_EQ(fill_template(html, {{"list", nullptr}, {"unit", ""}}), "none");
  EXPECT_EQ(fill_template("{{#o}}<{{x}}>{{/o}}", {{"o", {{"x", "1"}, {"y", "2"}}}}), "<1>");
  EXPECT_EQ(fill_template("{{#t}}<{{t}}>{{/t}}{{^t}}-{{/t}}", {{"t", "x"}}), "<x>");
  EXPECT_EQ(fill_template("{{#t}}<{{t}}>{{/t}}{{^t}}-{{/t}}", {{"t", ""}}), "-");
  EXPECT_EQ(fill_template("{{#l}}{{.}},{{/l}}", {{"l", Json::array({"a", "<"})}}), "a,&lt;,");
  EXPECT_EQ(fill_template("{{#a}}{{#b}}{{x}}{{/b}}{{/a}}{{#a}}!{{/a}}",
                          {{"a", {{"b", {{"x", "1"}, {"y", ""}}}, {"c", ""}}}}),
            "1!");
}

TEST(FillTemplate, MistakesOfTheTemplateAreBugs) {
  for (const char* html :
       {"{{missing}}", "{{a", "{{#a}}", "{{number}}", "{{#number}}{{/number}}", "{{#a}}{{/b}}"}) {
    EXPECT_EQ(error_of([&] { fill_template(html, {{"a", "x"}, {"number", 1}}); }).kind(), ErrorKind::internal)
        << html;
  }
}

}  // namespace
}  // namespace gramian
