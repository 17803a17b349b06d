// Package auth decides who may call a server: it authenticates callers by certificate, API
// token or join token, authorizes them, and guards every gRPC call. It also authenticates
// HTTP requests, including those to the registry.
//
// It guarantees that no call passes before its caller is authenticated, unless the method
// is declared open. It knows no noun but tokens, nodes and servers, and it does not know
// which server answers a call.
package auth
