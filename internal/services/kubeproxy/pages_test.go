package kubeproxy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestPages(t *testing.T) {
	for _, profiling := range []bool{false, true} {
		pages := Pages(Default(), profiling)
		ask := func(path string) (int, string) {
			w := httptest.NewRecorder()
			pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Code, w.Body.String()
		}
		if code, body := ask("/configz"); code != http.StatusOK || !strings.HasPrefix(body, `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"`) {
			t.Errorf("/configz answers %d %s", code, body)
		}
		if code, _ := ask("/debug/pprof/goroutine?debug=1"); (code == http.StatusOK) != profiling {
			t.Errorf("profiling %v: profiles answer %d", profiling, code)
		}
		if code, _ := ask("/other"); code != http.StatusNotFound {
			t.Errorf("what there is not answers %d", code)
		}
	}
}
