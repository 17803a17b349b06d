// Package rules applies the validation rules that the .proto files declare: by compiled checks, which recognize nearly
// every valid message quickly, and by the interpreter, which finds the violations of all others.
//
// It knows no kind of object and no wording of errors: package spec has both.
package rules
