// Package terminal draws on terminals: tables, lists of facts, progress lines, canvases that are drawn over themselves,
// colours and plots. Where the output is not a terminal it writes plain text without colours, and draws nothing over.
//
// It must not know the API, nor any command.
package terminal
