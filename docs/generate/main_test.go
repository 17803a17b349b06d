package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/api"
)

func TestGeneratedPagesAreUpToDate(t *testing.T) {
	for name, page := range pages {
		want, err := page()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join("..", name)); err != nil || string(got) != want {
			t.Errorf("docs/%s is not what the code says (%v): run make docs", name, err)
		}
	}
}

func TestPagesDoNotDependOnTheEnvironment(t *testing.T) {
	before, err := pages["cli.md"]()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CLOUDLESS_DATA_DIR", "/somewhere/else")
	t.Setenv("CLOUDLESS_CONTEXT", "mine")
	t.Setenv("HOME", "/home/me")
	if after, err := pages["cli.md"](); err != nil || after != before {
		t.Errorf("the page depends on who makes it: %v", err)
	}
}

func TestGenerateWritesEveryPage(t *testing.T) {
	dir := t.TempDir()
	if err := generate(dir); err != nil {
		t.Fatal(err)
	}
	for name := range pages {
		data, err := os.ReadFile(filepath.Join(dir, name))
		begin := "# "
		if filepath.Ext(name) == ".svg" {
			begin = "<svg "
		}
		if err != nil || !strings.HasPrefix(string(data), begin) {
			t.Errorf("%s begins with %.20q, %v", name, data, err)
		}
	}
	if err := generate(filepath.Join(dir, "none")); err == nil {
		t.Error("pages were written into a folder that is not there")
	}
}

func TestReferenceSaysWhoMayCall(t *testing.T) {
	page, err := apiReference(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Callers: viewers, operators and admins. Only the leader answers", "Callers: operators and admins. May be retried with the same `idempotencyKey`.",
		"Callers: every caller with an identity.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if calls, said := strings.Count(page, "### GET /")+strings.Count(page, "### P")+strings.Count(page, "### DELETE /"), strings.Count(page, "Callers: "); calls == 0 || said != calls {
		t.Errorf("the page says of %d of %d calls who may call them", said, calls)
	}
	if strings.Contains(page, "Callers: .") {
		t.Error("a call for users has no words for its callers")
	}
}

func TestReferenceOfAnAPI(t *testing.T) {
	page, err := apiReference([]byte(`{"paths":{"/v1/a/{id}":{"get":{"operationId":"GetA","summary":"Gets a|b.","tags":["S"],
		"parameters":[{"name":"id","in":"path","required":true,"type":"string","description":"<which>"}],
		"responses":{"200":{"schema":{"$ref":"#/definitions/v1A"}}}}},
		"/v1/a":{"get":{"operationId":"WatchA","tags":["S"],"responses":{"200":{"schema":{"type":"object","properties":{"result":{"$ref":"#/definitions/v1A"}}}}}}}},
		"definitions":{"v1A":{"type":"object","properties":{"n":{"type":"integer","format":"int32"},"m":{"type":"object","additionalProperties":{"type":"string"}},
		"l":{"type":"array","items":{"$ref":"#/definitions/v1A"}}}},"v1B":{"type":"object"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"## S\n\n### GET /v1/a\n\nAnswers with a stream of [v1A](#v1a)",
		"### GET /v1/a/{id}\n\nGets a\\|b.\n", "| `id` | path | string | &lt;which> |", "Answers with [v1A](#v1a).",
		"| `l` | list of [v1A](#v1a) |", "| `m` | map to string |", "| `n` | integer (int32) |", "### v1B\n\nIt has no fields.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if _, err := apiReference([]byte("no")); err == nil {
		t.Error("nonsense is a document")
	}
}
