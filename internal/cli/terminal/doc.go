// Package terminal draws on terminals: tables, lists of facts, progress lines, canvases that are redrawn in place,
// colours and plots. If the output is not a terminal, it writes plain text without colours and redraws nothing.
//
// It must not know the API, nor any command.
package terminal
