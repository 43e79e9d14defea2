// Command peer is a mutating webhook as the book of Kubebuilder shows one: the pod is decoded into its type, changed, encoded,
// and the patch is the difference between the two texts. The bench measures it beside Preflight's own.
//
// It decides nothing but whether the pod asks for a GPU. What it then adds it reads from a file at its start, which the bench makes from
// Preflight's answer to the same pod: so both send the same patch, and this one is spared the work of finding out what is in it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// additions is what a GPU pod gets.
type additions struct {
	First       []corev1.Container            `json:"first"`
	Last        []corev1.Container            `json:"last"`
	Volumes     []corev1.Volume               `json:"volumes"`
	PullSecrets []corev1.LocalObjectReference `json:"pullSecrets"`
	Labels      map[string]string             `json:"labels"`
	Annotations map[string]string             `json:"annotations"`
}

type injector struct {
	decoder admission.Decoder
	adds    additions
}

// Handle answers one review.
func (i *injector) Handle(ctx context.Context, req admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := i.decoder.Decode(req, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if !wantsGPU(pod) {
		return admission.Allowed("no GPU")
	}
	init := append(append([]corev1.Container{}, i.adds.First...), pod.Spec.InitContainers...)
	pod.Spec.InitContainers = append(init, i.adds.Last...)
	pod.Spec.Volumes = append(pod.Spec.Volumes, i.adds.Volumes...)
	pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, i.adds.PullSecrets...)
	pod.Labels = merged(pod.Labels, i.adds.Labels)
	pod.Annotations = merged(pod.Annotations, i.adds.Annotations)
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	log.FromContext(ctx).Info("injected", "namespace", req.Namespace)
	return admission.PatchResponseFromRaw(req.Object.Raw, changed)
}

func wantsGPU(pod *corev1.Pod) bool {
	for _, container := range pod.Spec.Containers {
		if amount, found := container.Resources.Limits["nvidia.com/gpu"]; found && !amount.IsZero() {
			return true
		}
	}
	return false
}

func merged(there, more map[string]string) map[string]string {
	if there == nil {
		there = map[string]string{}
	}
	for key, value := range more {
		there[key] = value
	}
	return there
}

func main() {
	port := flag.Int("port", 9443, "")
	certDir := flag.String("cert-dir", "", "folder with tls.crt and tls.key")
	file := flag.String("inject", "", "JSON file: what a GPU pod gets")
	flag.Parse()
	log.SetLogger(zap.New()) // JSON lines, as in production
	if err := serve(*port, *certDir, *file); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func serve(port int, certDir, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return err
	}
	handler := &injector{decoder: admission.NewDecoder(scheme)}
	if err := json.Unmarshal(content, &handler.adds); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: certDir})
	server.Register("/mutate-pod", &webhook.Admission{Handler: handler})
	return server.Start(signals.SetupSignalHandler())
}
