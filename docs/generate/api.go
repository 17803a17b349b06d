package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// document holds the parts of an OpenAPI document (version 2) that the page needs.
type document struct {
	Paths       map[string]map[string]operation `json:"paths"`
	Definitions map[string]schema               `json:"definitions"`
}

type operation struct {
	ID          string              `json:"operationId"`
	Summary     string              `json:"summary"`
	Description string              `json:"description"`
	Tags        []string            `json:"tags"`
	Parameters  []parameter         `json:"parameters"`
	Responses   map[string]response `json:"responses"`
}

type parameter struct {
	schema
	Name     string  `json:"name"`
	In       string  `json:"in"`
	Required bool    `json:"required"`
	Schema   *schema `json:"schema"`
}

type response struct {
	Schema schema `json:"schema"`
}

type schema struct {
	Ref         string            `json:"$ref"`
	Type        string            `json:"type"`
	Format      string            `json:"format"`
	Title       string            `json:"title"`
	Description string            `json:"description"`
	Items       *schema           `json:"items"`
	Additional  *schema           `json:"additionalProperties"`
	Properties  map[string]schema `json:"properties"`
}

// apiReference returns the page about the HTTP API.
func apiReference(openAPI []byte) (string, error) {
	var d document
	if err := json.Unmarshal(openAPI, &d); err != nil {
		return "", fmt.Errorf("read the OpenAPI document: %w", err)
	}
	var b strings.Builder
	b.WriteString("# API\n\nThis page is made from the OpenAPI document by `make docs`; a server gives that document at `/openapi.json`.\n" +
		"Every call but `/healthz` needs `Authorization: Bearer TOKEN` or a client certificate; the same calls exist as\n" +
		"gRPC, with reflection, on the same address. An error is answered as [rpcStatus](#rpcstatus) with the HTTP code\n" +
		"that fits. A call that streams answers with one JSON object per line.\n\n")
	for _, tag := range d.tags() {
		fmt.Fprintf(&b, "## %s\n\n", tag)
		for _, call := range d.calls(tag) {
			call.write(&b)
		}
	}
	b.WriteString("## Messages\n\n")
	for _, name := range slices.Sorted(maps.Keys(d.Definitions)) {
		writeMessage(&b, name, d.Definitions[name])
	}
	return strings.TrimRight(b.String(), "\n") + "\n", nil
}

func (d document) tags() []string {
	all := map[string]bool{}
	for _, methods := range d.Paths {
		for _, op := range methods {
			for _, tag := range op.Tags {
				all[tag] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// call is an operation with its method and path.
type call struct {
	method, path string
	operation
}

func (d document) calls(tag string) (all []call) {
	for path, methods := range d.Paths {
		for method, op := range methods {
			if slices.Contains(op.Tags, tag) {
				all = append(all, call{strings.ToUpper(method), path, op})
			}
		}
	}
	slices.SortFunc(all, func(a, b call) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method)) })
	return all
}

func (c call) write(b *strings.Builder) {
	fmt.Fprintf(b, "### %s %s\n\n", c.method, c.path)
	about := oneLine(c.Summary + " " + c.Description)
	if about != "" {
		fmt.Fprintf(b, "%s\n\n", about)
	}
	if m, ok := api.MethodOf("/cloudless.v1." + c.Tags[0] + "/" + c.ID); ok {
		fmt.Fprintf(b, "%s\n\n", declared(m))
	}
	var rows []string
	for _, p := range c.Parameters {
		kind := p.kind()
		if p.Schema != nil {
			kind = p.Schema.kind()
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", p.Name, p.In, kind, oneLine(p.Description)))
	}
	if len(rows) > 0 {
		b.WriteString("| parameter | in | type | is |\n| --- | --- | --- | --- |\n" + strings.Join(rows, "") + "\n")
	}
	if socket, ok := c.Responses["101"]; ok {
		fmt.Fprintf(b, "Opens a WebSocket, which sends %s.\n\n", socket.Schema.kind())
		return
	}
	result := c.Responses["200"].Schema
	if streamed, ok := result.Properties["result"]; ok {
		fmt.Fprintf(b, "Answers with a stream of %s, each as `result` of its line.\n\n", streamed.kind())
		return
	}
	fmt.Fprintf(b, "Answers with %s.\n\n", result.kind())
}

// callers are the callers of methods in words. Others than these have no methods with an HTTP form.
var callers = map[v1.Method_Caller]string{
	v1.Method_VIEWER:       "viewers, operators and admins",
	v1.Method_OPERATOR:     "operators and admins",
	v1.Method_ADMIN:        "admins",
	v1.Method_ANY_IDENTITY: "every caller with an identity",
	v1.Method_NODE:         "nodes, by their certificate",
	v1.Method_ANYONE:       "everyone, without an identity",
}

// declared says in words what the contract declares about a method.
func declared(m api.Method) string {
	about := "Callers: " + callers[m.Caller] + "."
	switch {
	case m.Reads && m.AnsweredBy == v1.Method_LEADER:
		about += " Only the leader answers, so that the answer is never stale."
	case m.Retry && m.HasKey():
		about += " May be retried with the same `idempotencyKey`."
	}
	return about
}

func writeMessage(b *strings.Builder, name string, s schema) {
	fmt.Fprintf(b, "### %s\n\n", name)
	if about := oneLine(s.Title + " " + s.Description); about != "" {
		fmt.Fprintf(b, "%s\n\n", about)
	}
	if len(s.Properties) == 0 {
		b.WriteString("It has no fields.\n\n")
		return
	}
	b.WriteString("| field | type | is |\n| --- | --- | --- |\n")
	for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[field]
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", field, p.kind(), oneLine(p.Title+" "+p.Description))
	}
	b.WriteString("\n")
}

// kind names a type, with a link if it is a message.
func (s schema) kind() string {
	switch {
	case s.Ref != "":
		name := strings.TrimPrefix(s.Ref, "#/definitions/")
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	case s.Type == "array" && s.Items != nil:
		return "list of " + s.Items.kind()
	case s.Additional != nil && s.Type == "object":
		return "map to " + s.Additional.kind()
	case s.Format != "":
		return s.Type + " (" + s.Format + ")"
	}
	return cmp.Or(s.Type, "object")
}

func oneLine(s string) string {
	return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(strings.Join(strings.Fields(s), " "))
}
