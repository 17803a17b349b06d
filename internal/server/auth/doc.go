// Package auth decides who may call a server: it proves callers by certificate,
// API token or join token, checks what they may do, and guards every gRPC call.
// HTTP requests and the registry are proved here, too.
//
// It guarantees that no call is let in before its caller is proved, unless the
// contract declares that the method is open. It knows no noun but tokens, nodes
// and servers, and it does not know where a call is answered.
package auth
