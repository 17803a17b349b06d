// Package api holds the contract of Cloudless: the .proto files under
// cloudless, and under gen what is generated from them by make generate.
package api

import _ "embed"

// OpenAPI describes the HTTP/JSON form of the API.
//
//go:embed gen/cloudless.swagger.json
var OpenAPI []byte
